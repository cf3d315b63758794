"""Drops months of the audit log. `record` writes events."""

from django.db.models.functions import Now

from control.core.api.errors import ApiError
from control.tenants.audit.models import AuditExport
from control.tenants.audit.record import audited
from control.tenants.audit.selectors import audit_month


@audited("audit_log.drop")
def audit_month_drop(*, export: AuditExport) -> AuditExport:
    """Deletes the exported events, through a database trigger: the application's database role may not delete events.

    Raises: ApiError: 409, the month has other events than the export.
    """
    num_events = audit_month(export.organization, export.month).count()
    # The trigger checks the number again, because an event may be added after this check.
    if num_events != export.num_events:
        message = f"The month has {num_events:,} events, but the export has {export.num_events:,}. Export it again."
        raise ApiError(409, message, "audit_month_changed", "sha256")
    AuditExport.objects.filter(pk=export.pk).update(dropped_at=Now())
    export.refresh_from_db()
    return export
