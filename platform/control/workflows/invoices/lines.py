"""The lines of an invoice: sums of the ledger's lines, with amounts in whole cents.

The ledger has its costs in billionths of a dollar. An invoice rounds each of its lines once, by the method of largest
remainders: the total is the ledger's total, rounded to cents (half a cent is rounded up); each line is rounded down;
and the cents that are then missing from the total go to the lines with the largest remainders, one each. The lines thus
add up to the total, and each differs from the sum of its costs by less than a cent.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from control.billing.ledger.months import closes_at, is_closed
from control.billing.ledger.selectors import MonthTotal, month_totals
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization, Project

CENT = 10**7  # in billionths of a dollar
OBJECT_KINDS = ("batch", "endpoint", "evaluation", "training")
UNITS = {"input_tokens": "input_token", "output_tokens": "output_token", "time": "device_hour"}
_MILLISECONDS_AN_HOUR = 3_600_000
_MICRO = Decimal("0.000001")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvoiceLine:
    project_id: str | None
    project_name: str | None
    object_kind: str  # one of `OBJECT_KINDS`
    model_id: str | None  # the base model, if the line is tokens
    model_name: str | None  # None also if the model no longer exists
    device_kind: str | None  # the kind of device, if the line is device time
    unit: str  # a value of `UNITS`
    used_in: dt.date  # first day of the month of the use; before the invoice's month if the ledger got the line late
    quantity: Decimal  # tokens, or hours with six decimals
    unit_price: Decimal | None  # US dollars; None: there was no price
    amount: Decimal  # US dollars, whole cents; negative: a credit
    credit_reason: str | None  # a `CreditReason`; None: the line is usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Invoice:
    month: dt.date
    is_closed: bool  # whether it can no longer change
    closes_at: dt.datetime
    lines: Sequence[InvoiceLine]

    @property
    def total(self) -> Decimal:
        """US dollars."""
        return sum((line.amount for line in self.lines), Decimal("0.00"))


def invoice_of(organization: Organization, month: dt.date) -> Invoice:
    """Returns the invoice of the organization or, for a key of a project, the project's part of the usage."""
    closed = is_closed(month)  # read before the lines, because lines can be added until the month is closed
    totals = month_totals(organization, month)
    projects = dict(Project.objects.filter(organization=organization).values_list("pk", "name"))
    ids = {total.base_model_id for total in totals}
    models = dict(BaseModel.objects.filter(pk__in=ids).values_list("pk", "name"))
    amounts = rounded_to_cents([total.cost_nanousd for total in totals])
    lines = [
        _line(total, amount, projects.get(total.project_id), models.get(total.base_model_id))
        for total, amount in zip(totals, amounts, strict=True)
    ]
    return Invoice(month=month, is_closed=closed, closes_at=closes_at(month), lines=lines)


def rounded_to_cents(nanousd: Sequence[int]) -> list[Decimal]:
    """Rounds amounts by the method of largest remainders.

    Returns: US dollars, in the order of `nanousd`. Of lines with equal remainders, the first get the missing cents.
    """
    cents = [amount // CENT for amount in nanousd]
    total = (sum(nanousd) + CENT // 2) // CENT
    by_remainder = sorted(range(len(cents)), key=lambda place: -(nanousd[place] % CENT))
    for place in by_remainder[: total - sum(cents)]:
        cents[place] += 1
    return [Decimal(number).scaleb(-2) for number in cents]


def _line(total: MonthTotal, amount: Decimal, project_name: str | None, model_name: str | None) -> InvoiceLine:
    object_kind, _, unit = total.subject.partition("_")
    quantity = Decimal(total.count)
    if unit == "time":
        quantity = (quantity / _MILLISECONDS_AN_HOUR).quantize(_MICRO)
    price = total.price_nanousd
    return InvoiceLine(
        project_id=total.project_id or None,
        project_name=project_name,
        object_kind=object_kind,
        model_id=total.base_model_id or None,
        model_name=model_name,
        device_kind=total.device_kind or None,
        unit=UNITS[unit],
        used_in=total.used_in,
        quantity=quantity,
        unit_price=None if price is None else Decimal(price * total.price_percent).scaleb(-11),
        amount=amount,
        credit_reason=total.credit_reason,
    )
