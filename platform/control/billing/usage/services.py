"""Services that write usage and prices. Counters are increased in the database, so callers may run concurrently."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Model
from django.utils import timezone

from control.billing.usage.models import Attribution, MonthlySpend, Price, UsageRecord
from control.billing.usage.selectors import price_of
from control.tenants.authentication.caller import Caller, current_caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    input: int = 0
    cached: int = 0  # the part of the input that was in the prefix cache
    output: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """Usage of one model by one API key in one minute."""

    caller: Caller
    model: str
    minute: dt.datetime
    tokens: Tokens
    num_requests: int
    is_batch: bool

    def row(self) -> dict[str, Any]:
        return {
            "organization_id": self.caller.organization_id,
            "minute": self.minute,
            "model": self.model,
            "project_id": self.caller.project_id,
            "api_key_id": self.caller.api_key_id,
            "is_batch": self.is_batch,
        }


def usage_add(
    *, caller: Caller, model: str, tokens: Tokens, num_requests: int, is_batch: bool, at: dt.datetime | None = None
) -> int:
    """Counts tokens at the current price. Returns: the cost in billionths of a dollar."""
    minute = minute_of(at or timezone.now())
    used = Used(caller=caller, model=model, minute=minute, tokens=tokens, num_requests=num_requests, is_batch=is_batch)
    return usage_add_all([used])


@transaction.atomic
def usage_add_all(usage: Sequence[Used]) -> int:
    """Counts and prices the usage, and increases the amounts spent in the month. Returns: the cost of all of it.

    All transactions lock usage records before amounts, and each kind in the order of its key, so that no two of them
    wait for each other.
    """
    spent: Counter[tuple[str, str, dt.date]] = Counter()
    for used in sorted(usage, key=lambda used: tuple(used.row().values())):
        counts = _counts(used)
        _increase(UsageRecord, used.row(), counts)
        cost = counts["input_nanousd"] + counts["output_nanousd"]
        month = used.minute.astimezone(dt.UTC).date().replace(day=1)
        for project_id in {"", used.caller.project_id}:
            spent[used.caller.organization_id, project_id, month] += cost
    for (organization_id, project_id, month), cost in sorted(spent.items()):
        if cost:
            row = {"organization_id": organization_id, "project_id": project_id, "month": month}
            _increase(MonthlySpend, row, {"nanousd": cost})
    return sum(cost for (_, project_id, _), cost in spent.items() if not project_id)


def minute_of(moment: dt.datetime) -> dt.datetime:
    return moment.replace(second=0, microsecond=0)


def _counts(used: Used) -> dict[str, int]:
    price = price_of(used.model)
    percent = price.batch_percent if used.is_batch else 100
    return {
        "input_tokens": used.tokens.input,
        "cached_tokens": used.tokens.cached,
        "output_tokens": used.tokens.output,
        "requests": used.num_requests,
        "input_nanousd": used.tokens.input * price.input_nanousd * percent // 100,
        "output_nanousd": used.tokens.output * price.output_nanousd * percent // 100,
    }


def _increase(counter: type[Model], row: dict[str, Any], counts: dict[str, int]) -> None:
    """Increases the counters in the row, which is created if it does not exist."""
    rows, increased = counter._default_manager.filter(**row), {name: F(name) + count for name, count in counts.items()}
    if rows.update(**increased):
        return
    try:
        with transaction.atomic():
            counter._default_manager.create(**row, **counts)
    except IntegrityError:  # another process has created the row meanwhile
        rows.update(**increased)


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


def price_set(*, model: str, input_nanousd: int, output_nanousd: int, batch_percent: int = 50) -> Price:
    """Sets the price from now on. An empty `model` stands for all models that have no price of their own."""
    values = {"input_nanousd": input_nanousd, "output_nanousd": output_nanousd, "batch_percent": batch_percent}
    price, _ = Price.objects.update_or_create(model=model, defaults=values)
    return price
