from django.urls import path

from control.billing.spending.views import SpendCapsView, SpendCapView

urlpatterns = [
    path("spend_caps", SpendCapsView.as_view()),
    path("spend_caps/<str:cap_id>", SpendCapView.as_view()),
]
