"""Services that write usage and prices. Counters are increased in the database, so callers may run concurrently."""

import datetime as dt
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.ledger.services import ledger_add
from control.billing.usage.models import Attribution, Price, UsageRecord
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
    """Counts tokens at the base model's current price, in the usage record of the minute and in the ledger.

    Args:
        model: the name in the request, which the customer may have chosen; it does not affect the price.
        object_id: the deployment or batch.
        sequence: which part of the object's usage this is. A second call for the same part changes nothing.
    Returns: the cost in billionths of a dollar.
    """
    moment = at or timezone.now()
    price = price_of(base_model_id)
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
        "minute": moment.replace(second=0, microsecond=0),
        "model": model,
        "project_id": caller.project_id,
        "api_key_id": caller.api_key_id,
        "is_batch": is_batch,
    }
    cost: int = counts["input_nanousd"] + counts["output_nanousd"]
    lines = [
        LedgerLine(
            organization_id=caller.organization_id,
            project_id=caller.project_id,
            api_key_id=caller.api_key_id,
            subject=subject,
            object_id=object_id,
            sequence=sequence,
            base_model_id=base_model_id,
            started_at=moment,
            ended_at=moment,
            count=counts[f"{kind}_tokens"],
            price_nanousd=getattr(price, f"{kind}_nanousd"),
            price_percent=percent,
            cost_nanousd=counts[f"{kind}_nanousd"],
        )
        for kind, subject in _SUBJECTS[is_batch].items()
    ]
    with transaction.atomic():
        if not ledger_add(*lines):
            return 0
        if not _increase(row, base_model_id, counts):
            _create(row, base_model_id, counts)
    return cost


def _create(row: dict[str, object], base_model_id: str, counts: dict[str, int]) -> None:
    try:
        with transaction.atomic():
            UsageRecord.objects.create(**row, base_model_id=base_model_id, **counts)
    except IntegrityError:  # another process has created the row meanwhile
        _increase(row, base_model_id, counts)


def _increase(row: dict[str, object], base_model_id: str, counts: dict[str, int]) -> bool:
    increased = {name: F(name) + count for name, count in counts.items()}
    return bool(UsageRecord.objects.filter(**row).update(base_model_id=base_model_id, **increased))


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
    """Sets the price from now on. It replaces a price that an earlier release stored under the model's name alone.

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
    """Removes the price of the base model with this id, or else the prices with this name. Returns: their number."""
    by_id = Price.objects.filter(base_model_id=model).delete()[0]
    return by_id or Price.objects.filter(model=model).delete()[0]
