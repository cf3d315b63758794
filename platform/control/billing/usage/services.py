"""Services that write usage and prices. Counters are increased in the database, so callers may run concurrently."""

import datetime as dt
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from control.billing.usage.models import Attribution, Price, UsageRecord
from control.billing.usage.selectors import price_of
from control.tenants.authentication.caller import Caller, current_caller


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    input: int = 0
    cached: int = 0  # the part of the input that was in the prefix cache
    output: int = 0


def usage_add(
    *, caller: Caller, model: str, tokens: Tokens, num_requests: int, is_batch: bool, at: dt.datetime | None = None
) -> int:
    """Counts tokens at the current price. Returns: the cost in billionths of a dollar."""
    price = price_of(model)
    percent = price.batch_percent if is_batch else 100
    counts = {
        "input_tokens": tokens.input,
        "cached_tokens": tokens.cached,
        "output_tokens": tokens.output,
        "requests": num_requests,
        "input_nanousd": tokens.input * price.input_nanousd * percent // 100,
        "output_nanousd": tokens.output * price.output_nanousd * percent // 100,
    }
    row = {
        "organization_id": caller.organization_id,
        "minute": (at or timezone.now()).replace(second=0, microsecond=0),
        "model": model,
        "project_id": caller.project_id,
        "api_key_id": caller.api_key_id,
        "is_batch": is_batch,
    }
    cost: int = counts["input_nanousd"] + counts["output_nanousd"]
    if _increase(row, counts):
        return cost
    try:
        with transaction.atomic():
            UsageRecord.objects.create(**row, **counts)
    except IntegrityError:  # another process has created the row meanwhile
        _increase(row, counts)
    return cost


def _increase(row: dict[str, object], counts: dict[str, int]) -> bool:
    increased = {name: F(name) + count for name, count in counts.items()}
    return bool(UsageRecord.objects.filter(**row).update(**increased))


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
