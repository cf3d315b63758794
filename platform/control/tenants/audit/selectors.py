"""Selectors for audit events."""

import datetime as dt

from django.db.models import QuerySet

from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent, AuditExport


def audit_events_list(organization: Organization) -> QuerySet[AuditEvent]:
    return AuditEvent.objects.filter(organization=organization)


def audit_month(organization: Organization | None, month: dt.date) -> QuerySet[AuditEvent]:
    """Args: organization: None: events that belong to no organization. month: its first day."""
    start = dt.datetime.combine(month, dt.time(), dt.UTC)
    end = (start + dt.timedelta(days=31)).replace(day=1)
    return AuditEvent.objects.filter(organization=organization, created_at__gte=start, created_at__lt=end)


def audit_export_get(organization: Organization, month: dt.date, sha256: str) -> AuditExport:
    """Raises: ApiError: 409, no complete export of the month has this digest, or the month has been dropped."""
    exports = AuditExport.objects.filter(organization=organization, month=month, sha256=sha256, dropped_at=None)
    export = exports.order_by("pk").last()
    if export is None:
        message = f"No export of {month:%Y-%m} has this digest. Export it, and state the digest of the last line."
        raise ApiError(409, message, "audit_month_not_exported", "sha256")
    return export
