"""Responses about usage and costs."""

from typing import Literal, Self

from control.billing.usage.serializers import NANO
from control.core.api.schemas import ResponseModel


class Amount(ResponseModel):
    value: float
    currency: Literal["usd"] = "usd"

    @classmethod
    def of(cls, nanousd: int) -> Self:
        return cls(value=float(nanousd / NANO))
