"""The limits of an organization: the installation's defaults, or the organization's own values (`Limits`).

The transaction that adds an object locks the organization's row before it checks the limit. Otherwise two concurrent
requests could each find that one more object fits.
"""

from dataclasses import dataclass

from django.db import transaction

from control.core.settings.config import get_config
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    queued_jobs: int
    running_jobs: int | None  # None: no limit
    deployments: int
    devices: int  # limit for the devices that jobs and endpoints hold together
    storage_bytes: int
    requests_per_minute: int


def quota_of(organization_id: str) -> Quota:
    return quota_with(Limits.objects.filter(pk=organization_id).first())


def quota_with(limits: Limits | None) -> Quota:
    """Args: limits: None if the organization has no limits of its own."""
    limits, config = limits or Limits(), get_config()
    return Quota(
        queued_jobs=config.max_queued_jobs if limits.queued_jobs is None else limits.queued_jobs,
        running_jobs=config.max_running_jobs if limits.running_jobs is None else limits.running_jobs,
        deployments=config.max_deployments if limits.deployments is None else limits.deployments,
        devices=config.max_devices if limits.devices is None else limits.devices,
        storage_bytes=config.max_storage_bytes if limits.storage_bytes is None else limits.storage_bytes,
        requests_per_minute=(
            config.requests_per_minute if limits.requests_per_minute is None else limits.requests_per_minute
        ),
    )


def organization_lock(organization_id: str) -> None:
    """Locks the organization's row until the transaction ends. (SQLite has no row locks, but only one writer.)"""
    assert transaction.get_connection().in_atomic_block, "a row lock needs a transaction"
    # no_key: inserts of rows that refer to the organization do not wait for this lock
    Organization.objects.select_for_update(no_key=True).only("pk").get(pk=organization_id)
