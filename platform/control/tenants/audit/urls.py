"""Routes below /v1/."""

from django.urls import path

from control.tenants.audit.views import AuditDropView, AuditEventsView, AuditExportView

urlpatterns = [
    path("audit_events", AuditEventsView.as_view()),
    path("audit_events/export", AuditExportView.as_view()),
    path("audit_events/drop", AuditDropView.as_view()),
]
