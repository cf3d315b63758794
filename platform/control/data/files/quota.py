"""Checks the limit on the total size of an organization's files."""

from django.db.models import Sum

from control.core.api.errors import ApiError
from control.data.files.models import File
from control.tenants.quotas.quota import organization_lock, quota_of


def storage_quota_check(organization_id: str, *, adding: int) -> None:
    """Call this in the transaction that adds the file. Raises: ApiError: 403."""
    quota = quota_of(organization_id)
    organization_lock(organization_id)
    kept = File.objects.filter(organization_id=organization_id, deleted_at=None)
    held = kept.aggregate(held=Sum("size_bytes"))["held"] or 0
    if held + adding > quota.storage_bytes:
        message = (
            f"Your organization's files hold {held:,} of {quota.storage_bytes:,} bytes; {adding:,} more do not fit."
            " Delete files that you no longer need."
        )
        raise ApiError(403, message, "storage_quota_exceeded", type="insufficient_quota")
