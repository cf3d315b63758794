from django.urls import path

from control.workflows.invoices.views import InvoiceCsvView, InvoiceView

urlpatterns = [
    path("invoices/<str:period>", InvoiceView.as_view()),
    path("invoices/<str:period>/csv", InvoiceCsvView.as_view()),
]
