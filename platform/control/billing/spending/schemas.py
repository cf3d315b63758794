"""Requests and responses of spend caps, and the type of dollar amounts in requests."""

from decimal import Decimal
from typing import Annotated, Literal, Self

from pydantic import Field, WithJsonSchema

from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import month_start, spent_nanousd
from control.billing.usage.schemas import NANO, Amount
from control.core.api.schemas import RequestModel, ResponseModel, Text, Unix

MAX_USD = 1_000_000_000

# A number of US dollars with up to nine decimals. The database stores billionths of a dollar (`nanousd`).
Dollars = Annotated[
    Decimal,
    Field(ge=0, le=MAX_USD, max_digits=19, decimal_places=9),
    WithJsonSchema({"type": "number", "format": "double", "minimum": 0, "maximum": MAX_USD}),
]


def nanousd(amount: Decimal) -> int:
    return int(amount * NANO)


class SpendCapInput(RequestModel):
    amount: Dollars = Field(description="US dollars per calendar month (UTC). With 0, nothing more may be spent.")
    project_id: Annotated[str, Text(40)] | None = None


class SpendCapUpdateInput(RequestModel):
    amount: Dollars = Field(description="US dollars per calendar month (UTC).")


class SpendCapObject(ResponseModel):
    id: str
    object: Literal["spend_cap"] = "spend_cap"
    project_id: str | None = Field(description="Null if the cap limits the whole organization.")
    amount: Amount = Field(description="The limit for a calendar month (UTC).")
    spent: Amount = Field(description="The amount spent so far this month.")
    is_reached: bool
    month_start: Unix
    created_at: Unix

    @classmethod
    def of(cls, cap: SpendCap) -> Self:
        spent = spent_nanousd(cap)
        return cls.from_row(
            cap,
            amount=Amount.of(cap.nanousd),
            spent=Amount.of(spent),
            is_reached=spent >= cap.nanousd,
            month_start=month_start(),
        )
