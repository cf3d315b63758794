"""Deletes the audit log of an organization that is deleted, and keeps a record of the deletion (`AuditErasure`).

The application's database role may not delete events. A trigger deletes up to 500 of the organization's events and of
its exports whenever `rounds` is incremented.
"""

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Now

from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditErasure, AuditEvent, AuditExport


@transaction.atomic
def erasure_begin(organization_id: str) -> AuditErasure | None:
    """Records that the organization is being deleted, after which the deletion can no longer be cancelled.

    Returns: None if the organization's time to cancel has not ended, or if the deletion was cancelled.
    """
    due = Organization.objects.select_for_update().filter(pk=organization_id, erase_after__lte=Now())
    organization = due.first()  # the lock makes a concurrent cancellation come before or after, never in between
    if organization is None:
        return AuditErasure.objects.filter(pk=organization_id, finished_at=None).first()
    assert organization.deletion_requested_at is not None, "both are set together"
    erasure, _ = AuditErasure.objects.get_or_create(
        organization_id=organization_id,
        defaults={
            "requested_by": organization.deletion_requested_by,
            "requested_at": organization.deletion_requested_at,
            "num_events": AuditEvent.objects.filter(organization=organization_id).count(),
        },
    )
    return erasure


def audit_log_erase(organization_id: str) -> bool:
    """Deletes up to 500 events and exports. Returns: False if there were none."""
    logs = (AuditEvent, AuditExport)
    if not any(log._default_manager.filter(organization=organization_id).exists() for log in logs):
        return False
    AuditErasure.objects.filter(pk=organization_id).update(rounds=F("rounds") + 1)
    return True


def erasure_finish(organization_id: str) -> None:
    """Records that nothing of the organization is left. Call this after its row is deleted."""
    AuditErasure.objects.filter(pk=organization_id, finished_at=None).update(finished_at=Now())
