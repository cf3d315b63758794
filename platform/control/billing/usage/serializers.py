"""Usage and costs as OpenAI shows them: a page of buckets, each with a result for every combination of the groups."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from control.billing.usage.selectors import Bucket, Sums, Window
from control.core.api.times import unix

NANO = Decimal(10) ** 9
_NO_GROUPS = {"project_id": None, "api_key_id": None}


def page_body(
    buckets: Iterable[Bucket], results: Callable[[Sums], list[dict[str, Any]]], *, window: Window, has_more: bool
) -> dict[str, Any]:
    data = [
        {
            "object": "bucket",
            "start_time": int(bucket.start.timestamp()),
            "end_time": int(bucket.end.timestamp()),
            "results": [result for sums in bucket.sums for result in results(sums)],
        }
        for bucket in buckets
    ]
    next_page = str(int(window.end.timestamp())) if has_more else None
    return {"object": "page", "data": data, "has_more": has_more, "next_page": next_page}


def completions_result(sums: Sums, groups: Mapping[str, str], chosen: Sequence[str]) -> dict[str, Any]:
    """`groups`: OpenAI's names, and the columns they stand for."""
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": sums.counts["input_tokens"],
        "input_cached_tokens": sums.counts["cached_tokens"],
        "output_tokens": sums.counts["output_tokens"],
        "num_model_requests": sums.counts["requests"],
        **dict.fromkeys(groups),
        "user_id": None,
        **_chosen(sums, groups, chosen),
    }


def cost_results(sums: Sums, chosen: Sequence[str]) -> list[dict[str, Any]]:
    """By line item, what went in and what came out are two lines, as on OpenAI's bill."""
    group = {**_NO_GROUPS, **_chosen(sums, {"project_id": "project_id", "api_key_id": "api_key_id"}, chosen)}
    kinds = ("input", "output")
    if "line_item" not in chosen:
        return [
            _cost(sum(sums.counts[f"{kind}_nanousd"] for kind in kinds), line_item=None, quantity=None, group=group)
        ]
    return [
        _cost(
            sums.counts[f"{kind}_nanousd"],
            line_item=f"{sums.group['model']}, {kind}_tokens",
            quantity=sums.counts[f"{kind}_tokens"],
            group=group,
        )
        for kind in kinds
    ]


def _cost(nanousd: int, *, line_item: str | None, quantity: int | None, group: dict[str, Any]) -> dict[str, Any]:
    return {
        "object": "organization.costs.result",
        "amount": dollars(nanousd),
        "line_item": line_item,
        "quantity": quantity,
        "quantity_unit": None if quantity is None else "tokens",
        **group,
    }


def total_body(sums: Sums, *, start: dt.datetime, end: dt.datetime) -> dict[str, Any]:
    """Ours: one figure for each, over the whole time."""
    nanousd = sums.counts["input_nanousd"] + sums.counts["output_nanousd"]
    return {
        "object": "usage",
        "start_time": unix(start),
        "end_time": unix(end),
        "input_tokens": sums.counts["input_tokens"],
        "input_cached_tokens": sums.counts["cached_tokens"],
        "output_tokens": sums.counts["output_tokens"],
        "num_model_requests": sums.counts["requests"],
        "cost": dollars(nanousd),
    }


def dollars(nanousd: int) -> dict[str, Any]:
    return {"value": float(nanousd / NANO), "currency": "usd"}


def _chosen(sums: Sums, groups: Mapping[str, str], chosen: Sequence[str]) -> dict[str, Any]:
    """An empty id is one that there was not."""
    values = {name: sums.group[groups[name]] for name in chosen if name in groups}
    return {name: None if value == "" else value for name, value in values.items()}
