"""Sums of the ledger."""

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Sum

from control.billing.ledger.models import LedgerLine, Subject
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible


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


def job_time_nanousd(organization: Organization, job_ids: Collection[str]) -> int:
    """Returns the cost of the device time that these jobs have used in the attempts that have ended."""
    subjects = (Subject.BATCH_TIME, Subject.TRAINING_TIME, Subject.EVALUATION_TIME)
    lines = LedgerLine.objects.filter(visible(organization), subject__in=subjects, object_id__in=job_ids)
    return lines.aggregate(cost=Sum("cost_nanousd"))["cost"] or 0
