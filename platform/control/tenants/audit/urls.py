"""Routes below /v1/."""

from django.urls import path

from control.tenants.audit.views import AuditEventsView

urlpatterns = [
    path("audit_events", AuditEventsView.as_view()),
]
