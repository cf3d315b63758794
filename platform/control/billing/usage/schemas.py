"""Responses about usage and costs: OpenAI's pages of buckets, and the total, which OpenAI does not have."""

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from control.billing.ledger.models import CreditReason, LedgerLine, Subject
from control.billing.usage.query import USAGE_GROUPS
from control.billing.usage.selectors import Bucket, Sums, Window, line_id
from control.core.api.schemas import OneOf, ResponseModel, Unix

NANO = Decimal(10) ** 9
_ID_GROUPS = {"project_id": "project_id", "api_key_id": "api_key_id"}


class Amount(ResponseModel):
    value: float
    currency: Literal["usd"] = "usd"

    @classmethod
    def of(cls, nanousd: int) -> Self:
        return cls(value=float(nanousd / NANO))


class CompletionsUsage(ResponseModel):
    object: Literal["organization.usage.completions.result"] = "organization.usage.completions.result"
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    project_id: str | None
    api_key_id: str | None
    user_id: str | None
    model: str | None
    batch: bool | None

    @classmethod
    def of(cls, sums: Sums) -> Self:
        return cls(user_id=None, **_counts(sums), **_group(sums, USAGE_GROUPS))


class Cost(ResponseModel):
    object: Literal["organization.costs.result"] = "organization.costs.result"
    amount: Amount
    line_item: str | None
    quantity: int | None
    quantity_unit: Literal["tokens", "milliseconds"] | None
    project_id: str | None
    api_key_id: str | None

    @classmethod
    def all_of(cls, sums: Sums) -> list[Self]:
        """Returns the cost items for one group of a bucket.

        If costs are grouped by line item, a model has two items, input and output tokens, as on OpenAI's bill. Device
        time has one item for each kind of device and subject.
        """
        ids = _group(sums, _ID_GROUPS)
        if "device" in sums.group:
            item, milliseconds = sums.group["device"], sums.counts["milliseconds"]
            return [cls(amount=_cost(sums), line_item=item, quantity=milliseconds, quantity_unit="milliseconds", **ids)]
        if "model" not in sums.group:
            return [cls(amount=_cost(sums), line_item=None, quantity=None, quantity_unit=None, **ids)]
        return [
            cls(
                amount=Amount.of(sums.counts[f"{kind}_nanousd"]),
                line_item=f"{sums.group['model']}, {kind}_tokens",
                quantity=sums.counts[f"{kind}_tokens"],
                quantity_unit="tokens",
                **ids,
            )
            for kind in ("input", "output")
        ]


class _Bucket(ResponseModel):
    object: Literal["bucket"] = "bucket"
    start_time: Unix
    end_time: Unix


class UsageBucket(_Bucket):
    results: list[CompletionsUsage]

    @classmethod
    def of(cls, bucket: Bucket) -> Self:
        results = [CompletionsUsage.of(sums) for sums in bucket.sums]
        return cls.from_row(bucket, start_time=bucket.start, end_time=bucket.end, results=results)


class CostBucket(_Bucket):
    results: list[Cost]

    @classmethod
    def of(cls, bucket: Bucket) -> Self:
        results = [cost for sums in bucket.sums for cost in Cost.all_of(sums)]
        return cls.from_row(bucket, start_time=bucket.start, end_time=bucket.end, results=results)


class BucketPage(ResponseModel):
    """Subclasses add `data`, the list of buckets."""

    object: Literal["page"] = "page"
    has_more: bool
    next_page: str | None

    @classmethod
    def of(cls, window: Window, data: Sequence[ResponseModel], *, has_more: bool) -> Self:
        next_page = str(int(window.end.timestamp())) if has_more else None
        return cls.model_validate({"data": data, "has_more": has_more, "next_page": next_page})


class UsagePage(BucketPage):
    """Request the next page with `page=<next_page>`."""

    data: list[UsageBucket]


class CostPage(BucketPage):
    """Request the next page with `page=<next_page>`."""

    data: list[CostBucket]


class UsageTotal(ResponseModel):
    object: Literal["usage"] = "usage"
    start_time: Unix
    end_time: Unix
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    cost: Amount = Field(description="The cost of tokens and device time.")

    @classmethod
    def of(cls, sums: Sums, *, start: dt.datetime, end: dt.datetime) -> Self:
        return cls.model_validate({"start_time": start, "end_time": end, "cost": _cost(sums), **_counts(sums)})


class LedgerLineObject(ResponseModel):
    id: str
    object: Literal["usage.ledger_line"] = "usage.ledger_line"
    subject: Annotated[str, OneOf(Subject)]
    object_id: str = Field(description="The deployment, batch or job.")
    sequence: str = Field(
        description="The part of the object's usage that the line records, such as a shard of a batch or an attempt of "
        "a job. For a credit: `credit:`, followed by the `sequence` of the attempt whose cost is given back."
    )
    project_id: str | None
    api_key_id: str | None
    base_model_id: str | None
    device_kind: str | None
    count: int = Field(description="The number of tokens, or of milliseconds of one device. 0 for a credit.")
    credit_reason: Annotated[str, OneOf(CreditReason)] | None = Field(
        description="Why the line gives back the cost of the attempt that `sequence` names. Null if the line is usage."
    )
    credited_count: int | None = Field(description="The number of milliseconds whose cost a credit gives back.")
    started_at: Unix
    ended_at: Unix
    price: Amount | None = Field(
        description="The price of one token, or of one hour of a device, when the line was written. Null if there was "
        "no price."
    )
    price_percent: int = Field(description="The percentage of the price that is charged.")
    cost: Amount = Field(description="The cost of the line. It is negative for a credit.")

    @classmethod
    def of(cls, line: LedgerLine) -> Self:
        names = ("project_id", "api_key_id", "base_model_id", "device_kind")
        return cls.from_row(
            line,
            id=line_id(line),
            price=None if line.price_nanousd is None else Amount.of(line.price_nanousd),
            cost=Amount.of(line.cost_nanousd),
            **{name: getattr(line, name) or None for name in names},
        )


def _counts(sums: Sums) -> dict[str, Any]:
    return {
        "input_tokens": sums.counts["input_tokens"],
        "input_cached_tokens": sums.counts["cached_tokens"],
        "output_tokens": sums.counts["output_tokens"],
        "num_model_requests": sums.counts["requests"],
    }


def _cost(sums: Sums) -> Amount:
    return Amount.of(sum(sums.counts.get(f"{kind}_nanousd", 0) for kind in ("input", "output", "device")))


def _group(sums: Sums, groups: Mapping[str, str]) -> dict[str, Any]:
    """Returns the group's values by OpenAI's names. A value is None if usage is not grouped by its column, or if the
    usage has no such id.

    Args: groups: columns of `UsageRecord` by OpenAI's names.
    """
    values = {name: sums.group.get(column) for name, column in groups.items()}
    return {name: None if value == "" else value for name, value in values.items()}
