"""Selectors for audit events."""

from django.db.models import QuerySet

from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent


def audit_events_list(organization: Organization) -> QuerySet[AuditEvent]:
    return AuditEvent.objects.filter(organization=organization)
