"""Writers of limits."""

from typing import TypedDict

from django.db import transaction

from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.quotas.models import Limits


class LimitValues(TypedDict):
    """None: as everybody has it."""

    queued_jobs: int | None
    running_jobs: int | None
    storage_bytes: int | None
    requests_per_minute: int | None


@audited("limits.set")
@transaction.atomic
def limits_set(*, organization: Organization, values: LimitValues) -> Limits:
    """In force from the next request and claim on; nothing that is running is stopped."""
    limits, _ = Limits.objects.update_or_create(organization=organization, defaults=dict(values))
    return limits
