"""Readers of caps, and what has been spent under them."""

import datetime as dt
from dataclasses import asdict, dataclass
from typing import Any

from django.db.models import F, Q, QuerySet, Sum
from django.utils import timezone

from control.billing.spending.models import SpendCap
from control.billing.usage.models import UsageRecord
from control.billing.usage.services import caller_of_job
from control.core.api.lookup import one_of
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.workflows.batches.models import Batch
from control.workflows.quotes.models import Quote

REACHED = "spend_cap_reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """A cap that leaves nothing to be spent; what a paused job's `paused` shows."""

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
    """So far this month. Shards count as they are committed, answers of endpoints as they end."""
    used = UsageRecord.objects.filter(organization_id=cap.organization_id, minute__gte=month_start())
    if cap.project_id is not None:
        used = used.filter(project_id=cap.project_id)
    return used.aggregate(sum=Sum(F("input_nanousd") + F("output_nanousd")))["sum"] or 0


def quote_spent_nanousd(quote: Quote) -> int:
    """By all batches that were made under it."""
    return Batch.objects.filter(quote=quote).aggregate(sum=Sum("cost_nanousd"))["sum"] or 0


def cap_reached(caller: Caller) -> Reached | None:
    """By the organization, or by the project of the key."""
    own = Q(project=None) | Q(project_id=caller.project_id or None)
    for cap in SpendCap.objects.filter(own, organization_id=caller.organization_id).order_by("pk"):
        spent = spent_nanousd(cap)
        if spent >= cap.nanousd:
            whose = "Your organization" if cap.project_id is None else "The project"
            message = f"{whose} has spent {_usd(spent)} of the {_usd(cap.nanousd)} that it may this month."
            return Reached(cap_id=cap.pk, message=message)
    return None


def batch_cap_reached(batch: Batch) -> Reached | None:
    """Of its quote, or of whoever asked for it."""
    quote = batch.quote
    if quote is not None and quote.cap_nanousd is not None:
        spent = quote_spent_nanousd(quote)
        if spent >= quote.cap_nanousd:
            message = f"{_usd(spent)} are spent of the {_usd(quote.cap_nanousd)} that the quote allows."
            return Reached(cap_id=quote.pk, message=message)
    return cap_reached(caller_of_job(job_id=batch.job_id, organization_id=batch.organization_id))


def batches_paused() -> QuerySet[Batch]:
    """By a cap, not by their customers."""
    paused = Batch.objects.filter(job__status="paused", job__paused__code=REACHED)
    return paused.select_related("job", "quote").order_by("pk")


def _usd(nanousd: int) -> str:
    return f"{nanousd / 1e9:,.6f}".rstrip("0").rstrip(".") + " USD"
