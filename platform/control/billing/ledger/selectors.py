"""Selectors that sum the lines of the ledger."""

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import BigIntegerField, F, OuterRef, Q, Subquery, Sum, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Coalesce, TruncMonth

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.ledger.months import billed_in, end_of, start_of
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible

_OF_JOBS = (Subject.BATCH_TIME, Subject.TRAINING_TIME, Subject.EVALUATION_TIME)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerTotal:
    """Sum of the lines with one subject and one kind of device (empty for tokens)."""

    subject: str
    device_kind: str
    count: int  # tokens, or milliseconds of one device
    cost_nanousd: int


def ledger_totals(organization: Organization, *, start: dt.datetime, end: dt.datetime) -> list[LedgerTotal]:
    """Sums the lines that ended within `[start, end)`, so that each line belongs to exactly one period."""
    lines = LedgerLine.objects.filter(visible(organization), ended_at__gte=start, ended_at__lt=end)
    rows = lines.values("subject", "device_kind").annotate(total=Sum("count"), cost=Sum("cost_nanousd"))
    return [
        LedgerTotal(
            subject=row["subject"], device_kind=row["device_kind"], count=row["total"], cost_nanousd=row["cost"]
        )
        for row in rows.order_by("subject", "device_kind")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthTotal:
    """The sum of an invoice's lines that have the same project, subject, model, device, price, month and reason."""

    project_id: str  # empty: no project
    subject: str
    base_model_id: str  # empty for device time
    device_kind: str  # empty for tokens
    price_nanousd: int | None  # of one token, or of one hour of a device; None: there was no price
    price_percent: int
    used_in: dt.date  # first day of the month in which the use ended
    credit_reason: str | None  # None: usage
    count: int  # tokens, or milliseconds of one device; for credits, the milliseconds whose cost is given back
    cost_nanousd: int  # negative for credits


def month_totals(organization: Organization, month: dt.date) -> list[MonthTotal]:
    """Sums the lines on the invoice of the month. Lines without use or cost are left out."""
    lines = LedgerLine.objects.filter(visible(organization), billed_in(month)).exclude(count=0, cost_nanousd=0)
    columns = (
        "project_id",
        "subject",
        "base_model_id",
        "device_kind",
        "price_nanousd",
        "price_percent",
        "used_in",
        "credit_reason",
    )
    rows = (
        lines.annotate(used_in=TruncMonth("ended_at", tzinfo=dt.UTC))
        .values(*columns)
        .annotate(total=Sum(Coalesce("credited_count", "count")), cost=Sum("cost_nanousd"))
        .order_by(*columns[:-1], F("credit_reason").asc(nulls_first=True))
    )
    return [
        MonthTotal(
            **{**{name: row[name] for name in columns}, "used_in": row["used_in"].date()},
            count=int(row["total"]),
            cost_nanousd=int(row["cost"]),
        )
        for row in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTime:
    """The device time of an endpoint's processes."""

    milliseconds: int
    nanousd: int
    nanousd_this_month: int


def endpoint_time(deployment_id: str, *, month: dt.date) -> EndpointTime:
    """Sums the ledger's lines for one deployment. There is a line for each minute of each process.

    Args: month: the first day of the current month.
    """
    lines = LedgerLine.objects.filter(subject=Subject.ENDPOINT_TIME, object_id=deployment_id)
    sums = lines.aggregate(
        milliseconds=Sum("count"),
        nanousd=Sum("cost_nanousd"),
        nanousd_this_month=Sum("cost_nanousd", filter=Q(ended_at__gte=start_of(month), ended_at__lt=end_of(month))),
    )
    return EndpointTime(**{name: value or 0 for name, value in sums.items()})


def job_time_nanousd(organization: Organization, job_ids: Collection[str]) -> int:
    """Returns the cost of the device time that these jobs have used in the attempts that have ended, less credits."""
    lines = LedgerLine.objects.filter(visible(organization), subject__in=_OF_JOBS, object_id__in=job_ids)
    return lines.aggregate(cost=Sum("cost_nanousd"))["cost"] or 0


def job_time_column(job_id: str) -> Combinable:
    """Returns a database expression for `annotate`: the `job_time_nanousd` of the job whose id is in column `job_id`.

    A list of jobs thus needs no separate query for each cost. The ledger's unique index finds the few lines of a job.
    """
    lines = LedgerLine.objects.filter(subject__in=_OF_JOBS, object_id=OuterRef(job_id)).order_by()
    cost = lines.values("object_id").annotate(cost=Sum("cost_nanousd")).values("cost")
    return Coalesce(Subquery(cost, output_field=BigIntegerField()), Value(0), output_field=BigIntegerField())
