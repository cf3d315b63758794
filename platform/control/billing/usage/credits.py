"""Credits: lines of the ledger that give back the cost of device time.

The `sequence` of a credit is `credit:`, followed by the sequence of the attempt whose cost is given back. The ledger's
unique key therefore permits only one credit for each attempt, even if several processes request credits or the reasons
differ. A credit has the same time as the line whose cost it gives back. The credit thus lowers the amount spent in the
month of the usage, which is compared with spend caps and thresholds. The credit is on the invoice of that month, unless
the month is closed.
"""

import datetime as dt

from django.db.models import Sum

from control.billing.ledger.models import CreditReason, LedgerLine, Subject
from control.billing.ledger.months import end_of, month_of, start_of
from control.billing.ledger.services import ledger_add
from control.billing.usage.services import spend_add
from control.tenants.authentication.caller import Caller

PREFIX = "credit:"


def credit_add(
    *,
    subject: Subject,
    object_id: str,
    sequence: str,
    percent: int,
    reason: CreditReason,
    monthly_limit_nanousd: int | None = None,
) -> int:
    """Gives back a part of the cost of one attempt's device time. Call this in the transaction of the event.

    Args:
        percent: the part of the cost that is given back.
        monthly_limit_nanousd: the limit for the sum of the credits with this reason that the organization gets for one
            month of usage. None: no limit. The caller must have locked the organization's row if there is a limit.
    Returns: the amount that is given back; 0 if the attempt had no cost or has been credited before.
    """
    used = LedgerLine.objects.filter(subject=subject, object_id=object_id, sequence=sequence).first()
    if used is None:
        return 0
    amount = used.cost_nanousd * percent // 100
    if monthly_limit_nanousd is not None:
        given = _given(used.organization_id, reason, month_of(used.ended_at))
        amount = min(amount, monthly_limit_nanousd - given)
    if amount <= 0:
        return 0
    credit = LedgerLine(
        organization_id=used.organization_id,
        project_id=used.project_id,
        api_key_id=used.api_key_id,
        subject=subject,
        object_id=object_id,
        sequence=f"{PREFIX}{sequence}",
        device_kind=used.device_kind,
        count=0,
        started_at=used.started_at,
        ended_at=used.ended_at,
        price_nanousd=used.price_nanousd,
        cost_nanousd=-amount,
        credit_reason=reason,
        credited_count=used.count * amount // used.cost_nanousd,
    )
    if not ledger_add(credit):
        return 0
    caller = Caller(organization_id=used.organization_id, api_key_id=used.api_key_id, project_id=used.project_id)
    spend_add([(caller, used.ended_at, -amount)])
    return amount


def credits_add_for_job(
    *, subject: Subject, object_id: str, percent: int, reason: CreditReason, monthly_limit_nanousd: int
) -> int:
    """Calls `credit_add` for each attempt of a job. Returns: the sum of the amounts that are given back."""
    attempts = LedgerLine.objects.filter(subject=subject, object_id=object_id, credit_reason=None).order_by("pk")
    return sum(
        credit_add(
            subject=subject,
            object_id=object_id,
            sequence=sequence,
            percent=percent,
            reason=reason,
            monthly_limit_nanousd=monthly_limit_nanousd,
        )
        for sequence in list(attempts.values_list("sequence", flat=True))
    )


def _given(organization_id: str, reason: CreditReason, month: dt.date) -> int:
    """Returns the sum of the organization's credits with this reason for usage in the month."""
    credits_of_month = LedgerLine.objects.filter(
        organization_id=organization_id,
        credit_reason=reason,
        ended_at__gte=start_of(month),
        ended_at__lt=end_of(month),
    )
    return -(credits_of_month.aggregate(cost=Sum("cost_nanousd"))["cost"] or 0)
