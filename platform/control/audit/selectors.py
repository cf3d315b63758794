"""Readers of audit events."""

from django.db.models import QuerySet

from control.accounts.models import Organization
from control.audit.models import AuditEvent


def audit_events_list(organization: Organization) -> QuerySet[AuditEvent]:
    return AuditEvent.objects.filter(organization=organization)
