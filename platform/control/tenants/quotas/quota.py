"""How much an organization may have at once: the installation's figures, or its own (`Limits`).

Two requests at once could each find room for one more. So whoever checks first takes the organization's row, in the
transaction that adds what is counted.
"""

from dataclasses import dataclass

from django.db import transaction
from django.db.models import Sum

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    queued_jobs: int
    running_jobs: int | None  # None: as many as there are workers
    storage_bytes: int
    requests_per_minute: int


def quota_of(organization_id: str) -> Quota:
    own, config = Limits.objects.filter(pk=organization_id).first() or Limits(), get_config()
    return Quota(
        queued_jobs=config.max_queued_jobs if own.queued_jobs is None else own.queued_jobs,
        running_jobs=config.max_running_jobs if own.running_jobs is None else own.running_jobs,
        storage_bytes=config.max_storage_bytes if own.storage_bytes is None else own.storage_bytes,
        requests_per_minute=(
            config.requests_per_minute if own.requests_per_minute is None else own.requests_per_minute
        ),
    )


def organization_hold(organization_id: str) -> None:
    """Until the transaction ends nobody else can. SQLite has one writer at a time anyway."""
    assert transaction.get_connection().in_atomic_block, "a lock lasts for a transaction"
    # no_key: rows that refer to the organization may still be added
    Organization.objects.select_for_update(no_key=True).only("pk").get(pk=organization_id)


def storage_quota_check(organization_id: str, *, adding: int) -> None:
    """Call it in the transaction that adds the file. Raises: ApiError: 403."""
    quota = quota_of(organization_id)
    organization_hold(organization_id)
    kept = File.objects.filter(organization_id=organization_id, deleted_at=None)
    held = kept.aggregate(held=Sum("size_bytes"))["held"] or 0
    if held + adding > quota.storage_bytes:
        message = (
            f"Your organization's files hold {held:,} of {quota.storage_bytes:,} bytes; {adding:,} more do not fit."
            " Delete files that you no longer need."
        )
        raise ApiError(403, message, "storage_quota_exceeded", type="insufficient_quota")
