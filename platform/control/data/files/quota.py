"""Checks the limit on the total size of an organization's files."""

from django.db.models import Sum

from control.core.api.errors import ApiError
from control.data.files.models import File
from control.tenants.quotas.quota import organization_lock, quota_of


def storage_quota_check(organization_id: str, *, adding: int) -> None:
    """Call this in the transaction that adds the file: until it ends, no other file is added. Raises: ApiError: 403."""
    quota = quota_of(organization_id)
    organization_lock(organization_id)
    files = File.objects.filter(organization_id=organization_id, deleted_at=None)
    used_bytes = files.aggregate(used_bytes=Sum("size_bytes"))["used_bytes"] or 0
    if used_bytes + adding > quota.storage_bytes:
        message = (
            f"Your organization's files hold {used_bytes:,} of {quota.storage_bytes:,} bytes;"
            f" {adding:,} more do not fit."
            " Delete files that you no longer need."
        )
        raise ApiError(403, message, "storage_quota_exceeded", type="insufficient_quota")
