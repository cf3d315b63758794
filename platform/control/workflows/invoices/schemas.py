"""The response about an invoice. Amounts are strings of decimal digits, because a float cannot represent them."""

import datetime as dt
from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field

from control.billing.ledger.models import CreditReason
from control.core.api.schemas import OneOf, ResponseModel, Unix
from control.workflows.invoices.lines import OBJECT_KINDS, UNITS, Invoice, InvoiceLine

CURRENCY: Literal["usd"] = "usd"


class InvoiceLineObject(ResponseModel):
    project_id: str | None = Field(description="Null if the usage belongs to no project.")
    project_name: str | None
    object_kind: Annotated[str, OneOf(OBJECT_KINDS)]
    model_id: str | None = Field(description="The base model whose tokens were used. Null for device time.")
    model_name: str | None = Field(description="Null for device time, and if the base model was deleted.")
    device_kind: str | None = Field(description="The kind of device whose time was used. Null for tokens.")
    used_in: str = Field(
        description="The month of the usage, such as 2026-01. It is earlier than the month of the invoice if the usage "
        "was recorded after its own month was closed."
    )
    unit: Annotated[str, OneOf(UNITS.values())]
    quantity: str = Field(description="The number of units. Hours have up to six decimals.")
    unit_price: str | None = Field(description="US dollars for one unit. Null if the unit had no price.")
    amount: str = Field(description="US dollars with two decimals. The amount of a credit is negative.")
    credit_reason: Annotated[str, OneOf(CreditReason)] | None = Field(
        description="Why the cost of device time is given back. `gate_rejected`: the time was used to train a "
        "speculator that did not pass its gate. `attempt_failed`: the time was used by an attempt that failed for "
        "reasons of the service. Null if the line is usage."
    )

    @classmethod
    def of(cls, line: InvoiceLine) -> Self:
        price = None if line.unit_price is None else digits(line.unit_price)
        numbers = {"quantity": digits(line.quantity), "unit_price": price, "amount": digits(line.amount)}
        return cls.from_row(line, used_in=month_name(line.used_in), **numbers)


class InvoiceObject(ResponseModel):
    id: str = Field(description="The month (UTC), such as 2026-01.")
    object: Literal["invoice"] = "invoice"
    currency: Literal["usd"] = CURRENCY
    total: str = Field(description="US dollars with two decimals: the sum of the lines' amounts.")
    is_closed: bool = Field(description="Whether the invoice can no longer change.")
    closes_at: Unix
    lines: list[InvoiceLineObject]

    @classmethod
    def of(cls, invoice: Invoice) -> Self:
        return cls.from_row(
            invoice,
            id=month_name(invoice.month),
            total=digits(invoice.total),
            lines=[InvoiceLineObject.of(line) for line in invoice.lines],
        )


def digits(number: Decimal) -> str:
    """Returns the number without an exponent. Cents keep their two decimals; longer fractions lose trailing zeros."""
    text = f"{number:f}"
    whole, _, fraction = text.partition(".")
    if len(fraction) <= 2:
        return text
    fraction = fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def month_name(month: dt.date) -> str:
    return f"{month:%Y-%m}"
