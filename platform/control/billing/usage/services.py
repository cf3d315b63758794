"""Services that write usage and prices. Counters are increased in the database, so callers may run concurrently."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Model
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.ledger.months import month_of
from control.billing.ledger.services import ledger_add
from control.billing.usage.models import Attribution, MonthlySpend, Price, UsageRecord
from control.billing.usage.selectors import price_of, prices_unassigned
from control.tenants.authentication.caller import Caller, current_caller

_SUBJECTS = {  # by `is_batch`
    False: {"input": Subject.ENDPOINT_INPUT_TOKENS, "output": Subject.ENDPOINT_OUTPUT_TOKENS},
    True: {"input": Subject.BATCH_INPUT_TOKENS, "output": Subject.BATCH_OUTPUT_TOKENS},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    input: int = 0
    cached: int = 0  # the part of the input that was in the prefix cache
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Usage of one model by one API key in one minute."""

    caller: Caller
    model: str  # the name in the request, which the customer may have chosen; it does not affect the price
    base_model_id: str
    object_id: str  # id of the deployment or batch
    sequence: str  # names a part of the object's usage, such as a shard of a batch; each part is charged once
    at: dt.datetime  # when the usage ended
    tokens: Tokens
    num_requests: int
    is_batch: bool

    def row(self) -> dict[str, Any]:
        return {
            "organization_id": self.caller.organization_id,
            "minute": minute_of(self.at),
            "model": self.model,
            "project_id": self.caller.project_id,
            "api_key_id": self.caller.api_key_id,
            "is_batch": self.is_batch,
        }


def usage_add(
    *,
    caller: Caller,
    model: str,
    base_model_id: str,
    tokens: Tokens,
    num_requests: int,
    is_batch: bool,
    object_id: str,
    sequence: str,
    at: dt.datetime | None = None,
) -> int:
    """Counts tokens at the current price of the base model. Returns: the cost in billionths of a dollar."""
    used = Used(
        caller=caller,
        model=model,
        base_model_id=base_model_id,
        object_id=object_id,
        sequence=sequence,
        at=at or timezone.now(),
        tokens=tokens,
        num_requests=num_requests,
        is_batch=is_batch,
    )
    return usage_add_all([used])


@transaction.atomic
def usage_add_all(usage: Sequence[Used]) -> int:
    """Prices the usage, and adds it to the usage records, the ledger and the amounts spent in the month.

    Usage is skipped if the ledger already has a line with its object and sequence. To avoid deadlocks, all transactions
    lock usage records before amounts spent, and lock the rows of each table in the order of the table's keys.
    Returns: the cost of the usage that was not skipped.
    """
    spent: list[tuple[Caller, dt.datetime, int]] = []
    prices = {model_id: price_of(model_id) for model_id in {used.base_model_id for used in usage}}
    for used in sorted(usage, key=lambda used: (*used.row().values(), used.object_id)):
        price = prices[used.base_model_id]
        counts = _counts(used, price)
        if not ledger_add(*_ledger_lines(used, price, counts)):
            continue
        _increase(UsageRecord, used.row(), counts, base_model_id=used.base_model_id)
        spent.append((used.caller, used.at, counts["input_nanousd"] + counts["output_nanousd"]))
    spend_add(spent)
    return sum(cost for _, _, cost in spent)


def spend_add(spent: Sequence[tuple[Caller, dt.datetime, int]]) -> None:
    """Adds each cost to the amounts that the caller's organization and project have spent in the month.

    Rows are locked in the order of their keys.
    """
    amounts: Counter[tuple[str, str, dt.date]] = Counter()
    for caller, at, cost in spent:
        for project_id in {"", caller.project_id}:
            amounts[caller.organization_id, project_id, month_of(at)] += cost
    for (organization_id, project_id, month), cost in sorted(amounts.items()):
        if cost:
            row = {"organization_id": organization_id, "project_id": project_id, "month": month}
            _increase(MonthlySpend, row, {"nanousd": cost})


def minute_of(moment: dt.datetime) -> dt.datetime:
    return moment.replace(second=0, microsecond=0)


def _counts(used: Used, price: Price) -> dict[str, int]:
    percent = price.batch_percent if used.is_batch else 100
    return {
        "input_tokens": used.tokens.input,
        "cached_tokens": used.tokens.cached,
        "output_tokens": used.tokens.output,
        "requests": used.num_requests,
        "input_nanousd": used.tokens.input * price.input_nanousd * percent // 100,
        "output_nanousd": used.tokens.output * price.output_nanousd * percent // 100,
    }


def _ledger_lines(used: Used, price: Price, counts: dict[str, int]) -> list[LedgerLine]:
    return [
        LedgerLine(
            organization_id=used.caller.organization_id,
            project_id=used.caller.project_id,
            api_key_id=used.caller.api_key_id,
            subject=subject,
            object_id=used.object_id,
            sequence=used.sequence,
            base_model_id=used.base_model_id,
            started_at=used.at,
            ended_at=used.at,
            count=counts[f"{kind}_tokens"],
            price_nanousd=getattr(price, f"{kind}_nanousd"),
            price_percent=price.batch_percent if used.is_batch else 100,
            cost_nanousd=counts[f"{kind}_nanousd"],
        )
        for kind, subject in _SUBJECTS[used.is_batch].items()
    ]


def _increase(counter: type[Model], row: dict[str, Any], counts: dict[str, int], **values: Any) -> None:
    """Adds `counts` to the counters of a row and sets its other `values`. Creates the row if it does not exist."""
    rows, increased = counter._default_manager.filter(**row), {name: F(name) + count for name, count in counts.items()}
    if rows.update(**increased, **values):
        return
    try:
        with transaction.atomic():
            counter._default_manager.create(**row, **counts, **values)
    except IntegrityError:  # another process has created the row meanwhile
        rows.update(**increased, **values)


def usage_attribute(*, job_id: str, organization_id: str) -> None:
    """Stores the API key of the current request, if any. Call this where a job or pipeline is created."""
    caller = current_caller()
    if caller is not None and caller.organization_id == organization_id:
        Attribution.objects.create(
            job_id=job_id,
            organization_id=organization_id,
            project_id=caller.project_id,
            api_key_id=caller.api_key_id,
        )


def caller_of_job(*, job_id: str, organization_id: str) -> Caller:
    attribution = Attribution.objects.filter(job_id=job_id).first()
    if attribution is None:
        return Caller(organization_id=organization_id)
    return Caller(organization_id=organization_id, api_key_id=attribution.api_key_id, project_id=attribution.project_id)


@transaction.atomic
def price_set(
    *, base_model_id: str, model: str = "", input_nanousd: int, output_nanousd: int, batch_percent: int = 50
) -> Price:
    """Sets the price from now on. Deletes a price that an earlier release stored for the name `model`, without an id.

    Args:
        base_model_id: "" stands for all models that have no price of their own.
        model: the base model's name.
    """
    prices_unassigned().filter(model=model).delete()
    values = {
        "model": model,
        "input_nanousd": input_nanousd,
        "output_nanousd": output_nanousd,
        "batch_percent": batch_percent,
    }
    price, _ = Price.objects.update_or_create(base_model_id=base_model_id, defaults=values)
    return price


def price_remove(*, model: str) -> int:
    """Removes the price of the base model with the id `model`, or else all prices with the name `model`.

    Returns: the number of removed prices.
    """
    by_id = Price.objects.filter(base_model_id=model).delete()[0]
    return by_id or Price.objects.filter(model=model).delete()[0]
