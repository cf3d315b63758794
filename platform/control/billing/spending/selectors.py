"""Selectors for spend caps and for the amounts spent under them."""

import datetime as dt
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import Q, QuerySet
from django.utils import timezone

from control.billing.ledger.months import month_of, start_of
from control.billing.spending.models import SpendCap
from control.billing.usage.models import MonthlySpend
from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.tenants.authentication.caller import Caller

REACHED = "spend_cap_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapReached:
    """A cap that has been reached. If a job is paused for this reason, the job's field `paused` has these values."""

    cap_id: str  # of a spend cap or a quote
    message: str
    code: str = REACHED

    def as_reason(self) -> dict[str, Any]:
        return asdict(self)


def spend_caps_list(organization: Organization) -> QuerySet[SpendCap]:
    return SpendCap.objects.filter(visible(organization))


def spend_cap_get(organization: Organization, cap_id: str) -> SpendCap:
    """Raises: ApiError: 404, also for another organization's cap."""
    return one_of(spend_caps_list(organization), cap_id, kind="spend cap", param="cap_id")


def month_start() -> dt.datetime:
    return start_of(month_of(timezone.now()))


def spent_nanousd(cap: SpendCap) -> int:
    """Returns the amount that counts towards the cap this month."""
    return spent_this_month(cap.organization_id, cap.project_id)


def spent_this_month(organization_id: str, project_id: str | None) -> int:
    """Returns the amount spent this month: for committed shards, completed answers of endpoints and device time.

    Args: project_id: None: the spending of all projects.
    """
    counters = MonthlySpend.objects.filter(organization_id=organization_id, project_id=project_id or "")
    return counters.filter(month=month_start().date()).values_list("nanousd", flat=True).first() or 0


def caps_of(caller: Caller) -> QuerySet[SpendCap]:
    """Returns the caps of the caller's organization and of its project."""
    applies = Q(project=None) | Q(project_id=caller.project_id or None)
    return SpendCap.objects.filter(applies, organization_id=caller.organization_id).order_by("pk")


def cap_reached(caller: Caller) -> CapReached | None:
    """Returns a cap that the caller's organization or project has reached, or None if there is no such cap."""
    for cap in caps_of(caller):
        spent = spent_nanousd(cap)
        if spent >= cap.nanousd:
            return CapReached(cap_id=cap.pk, message=f"{describe(cap, spent)}.")
    return None


def describe(cap: SpendCap, spent: int) -> str:
    whose = "Your organization" if cap.project_id is None else "The project"
    return f"{whose} has spent {format_usd(spent)}; its cap for this month is {format_usd(cap.nanousd)}"


def format_usd(nanousd: int) -> str:
    return f"{nanousd / 1e9:,.6f}".rstrip("0").rstrip(".") + " USD"
