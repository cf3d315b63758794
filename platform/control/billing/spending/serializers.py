"""Caps as the API shows them, and what a request for one may say."""

from decimal import Decimal
from typing import Any

from rest_framework import serializers

from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import month_start, spent_nanousd
from control.billing.usage.schemas import NANO, Amount
from control.core.api.fields import BodyInput
from control.core.api.times import unix

MAX_USD = 1_000_000_000


class DollarsField(serializers.DecimalField):
    """A number of US dollars, as precise as prices are. `nanousd` of it is what is stored."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            max_digits=19, decimal_places=9, min_value=0, max_value=MAX_USD, coerce_to_string=False, **options
        )


def nanousd(amount: Decimal) -> int:
    return int(amount * NANO)


def spend_cap_body(cap: SpendCap) -> dict[str, Any]:
    spent = spent_nanousd(cap)
    return {
        "id": cap.pk,
        "object": "spend_cap",
        "project_id": cap.project_id,
        "amount": Amount.of(cap.nanousd).as_json(),
        "spent": Amount.of(spent).as_json(),
        "is_reached": spent >= cap.nanousd,
        "month_start": unix(month_start()),
        "created_at": unix(cap.created_at),
    }


class SpendCapInput(BodyInput):
    amount = DollarsField(help_text="US dollars a calendar month (UTC); 0: nothing more is spent.")
    project_id = serializers.CharField(max_length=40, allow_null=True, default=None)


class SpendCapUpdateInput(BodyInput):
    amount = DollarsField(help_text="US dollars a calendar month (UTC).")
