"""The service with which operators set an organization's limits."""

from typing import TypedDict

from django.db import transaction

from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.quotas.models import Limits


class LimitValues(TypedDict):
    """The limits of an organization; None means the installation's default."""

    queued_jobs: int | None
    running_jobs: int | None
    deployments: int | None
    devices: int | None
    storage_bytes: int | None
    requests_per_minute: int | None


@audited("limits.set")
@transaction.atomic
def limits_set(*, organization: Organization, values: LimitValues) -> Limits:
    """Replaces the limits. They apply from the next request and the next claim of a job; running jobs continue."""
    limits, _ = Limits.objects.update_or_create(organization=organization, defaults=dict(values))
    return limits
