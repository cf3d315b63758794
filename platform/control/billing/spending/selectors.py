"""Selectors for spend caps and for the amounts spent under them."""

import datetime as dt
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from control.billing.spending.models import SpendCap
from control.billing.usage.models import UsageRecord
from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller

REACHED = "spend_cap_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapReached:
    """A cap that is reached. The field `paused` of a job that is paused for this reason has these values."""

    cap_id: str  # of a spend cap or a quote
    message: str
    code: str = REACHED

    def as_reason(self) -> dict[str, Any]:
        return asdict(self)


def spend_caps_list(organization: Organization) -> QuerySet[SpendCap]:
    return SpendCap.objects.filter(organization=organization)


def spend_cap_get(organization: Organization, cap_id: str) -> SpendCap:
    """Raises: ApiError: 404, also for another organization's cap."""
    return one_of(spend_caps_list(organization), cap_id, kind="spend cap", param="cap_id")


def month_start() -> dt.datetime:
    return timezone.now().astimezone(dt.UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def spent_nanousd(cap: SpendCap) -> int:
    """Returns the amount spent this month: the cost of committed shards and of completed answers of endpoints."""
    used = UsageRecord.objects.filter(organization_id=cap.organization_id, minute__gte=month_start())
    if cap.project_id is not None:
        used = used.filter(project_id=cap.project_id)
    return used.aggregate(sum=Sum(F("input_nanousd") + F("output_nanousd")))["sum"] or 0


def cap_reached(caller: Caller) -> CapReached | None:
    """Returns a cap of the caller's organization or project that is reached, or None."""
    applies = Q(project=None) | Q(project_id=caller.project_id or None)
    for cap in SpendCap.objects.filter(applies, organization_id=caller.organization_id).order_by("pk"):
        spent = spent_nanousd(cap)
        if spent >= cap.nanousd:
            whose = "Your organization" if cap.project_id is None else "The project"
            message = f"{whose} has spent {format_usd(spent)}; its cap for this month is {format_usd(cap.nanousd)}."
            return CapReached(cap_id=cap.pk, message=message)
    return None


def format_usd(nanousd: int) -> str:
    return f"{nanousd / 1e9:,.6f}".rstrip("0").rstrip(".") + " USD"
