from django.urls import path

from control.workflows.quotes.views import QuotesView, QuoteView

urlpatterns = [
    path("quotes", QuotesView.as_view()),
    path("quotes/<str:quote_id>", QuoteView.as_view()),
]
