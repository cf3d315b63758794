from django.urls import path

from control.workflows.invoices.views import InvoiceCsvView, InvoiceView

urlpatterns = [
    path("invoices/<str:month>", InvoiceView.as_view()),
    path("invoices/<str:month>/csv", InvoiceCsvView.as_view()),
]
