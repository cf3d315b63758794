"""Creates quotes and sets their caps. A quote is `measuring` until its pilot ends, and then `ready` or `failed`."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import Q, Sum
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.ledger.services import device_kind
from control.billing.usage.device_time import hour_price
from control.billing.usage.models import UsageRecord
from control.billing.usage.selectors import price_of, require_price
from control.core.api.errors import ApiError
from control.core.ids import quote_id
from control.core.storage.backends import ObjectMissing
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.models.catalog.models import BaseModel
from control.queue.jobs.state import TERMINAL as JOB_ENDED
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.tenants.audit.record import audit_record, audited
from control.workflows.batches.caps import batches_resume
from control.workflows.batches.models import Batch
from control.workflows.batches.state import TERMINAL
from control.workflows.datasets.models import Dataset
from control.workflows.quotes.caps import jobs_resume
from control.workflows.quotes.models import Quote
from control.workflows.quotes.pilot import answer_lengths, mean_with_bounds, pilot_rows_store, pilot_start
from control.workflows.quotes.stages import DatasetFacts, Interval, PilotFacts, estimate_stages

HISTORY = dt.timedelta(days=90)  # an estimate from history uses the batches of this period
MIN_REQUESTS = 20  # an estimate from history needs at least this many past requests
Status, Basis = Quote.Status, Quote.Basis


@audited("quote.create", records_itself=True)
def quote_create(
    *,
    organization: Organization,
    dataset: Dataset,
    basis: Quote.Basis,
    cap_nanousd: int | None = None,
    pipeline: Mapping[str, Any] | None = None,
) -> Quote:
    """Estimates the cost at current prices. With the basis `pilot`, runs a few rows, which the customer pays for.

    Args: pipeline: the values of a `QuotedPipeline`, whose stages are estimated as well; only with the basis `pilot`.
        The pilot runs on its `hardware`.
    Raises: ApiError: 403, the model has no price; 409, the dataset is not valid, its tokens are not counted, or there
        are too few past requests.
    """
    model = dataset.base_model
    if model is None or dataset.num_tokens is None or dataset.status != Dataset.Status.VALID or not dataset.num_rows:
        message = "A quote needs a valid dataset that was created with a `model`, because its tokens must be counted."
        raise ApiError(409, message, "dataset_not_quotable", "dataset_id")
    require_price(base_model_id=model.pk, name=model.name)
    price, identity = price_of(model.pk), quote_id()
    mean = _mean_past_output_tokens(organization, model) if basis is Basis.HISTORY else None
    with delete_stored_on_error():
        rows = pilot_rows_store(dataset, quote_id=identity) if mean is None else None
        with change():
            quote = Quote.objects.create(
                id=identity,
                organization=organization,
                dataset=dataset,
                basis=basis,
                pilot=None
                if rows is None
                else pilot_start(dataset, rows, quote_id=identity, hardware=(pipeline or {}).get("hardware") or ""),
                status=Status.MEASURING if mean is None else Status.READY,
                output_tokens=None if mean is None else round(mean * dataset.num_rows),
                input_nanousd=dataset.num_tokens * price.input_nanousd * price.batch_percent // 100,
                pipeline=pipeline,
                cap_nanousd=cap_nanousd,
                output_nanousd=price.output_nanousd * price.batch_percent // 100,
            )
            audit_record("quote.create", quote)
    return quote


def _mean_past_output_tokens(organization: Organization, model: BaseModel) -> float:
    """Mean number of output tokens per batch row within `HISTORY`. Raises: ApiError: 409, too few requests."""
    # usage that earlier releases recorded has only the model's name
    of_model = Q(base_model_id=model.pk) | Q(base_model_id="", model=model.name)
    past = UsageRecord.objects.filter(
        of_model, visible(organization), is_batch=True, minute__gte=timezone.now() - HISTORY
    ).aggregate(tokens=Sum("output_tokens"), requests=Sum("requests"))
    if (past["requests"] or 0) < MIN_REQUESTS:
        message = (
            f"{model.name!r} answered fewer than {MIN_REQUESTS} of your batch rows in the last {HISTORY.days} days; "
            "use the basis `pilot`."
        )
        raise ApiError(409, message, "no_history", "basis")
    return float(past["tokens"] / past["requests"])


def quote_settle(*, quote: Quote) -> Quote:
    """If the pilot has ended, completes the quote from the pilot's answers. May be called at any time."""
    pilot = quote.pilot
    if quote.status != Status.MEASURING or (pilot is not None and not _has_ended(quote, pilot)):
        return quote
    try:
        lengths = answer_lengths(pilot) if pilot is not None and pilot.tokens_key else []
    except ObjectMissing:  # the pilot's files were deleted before the quote was read
        lengths = []
    unsettled = Quote.objects.filter(pk=quote.pk, status=Status.MEASURING)  # empty if another call has settled it
    if not lengths or pilot is None:
        unsettled.update(status=Status.FAILED)
    else:
        mean, low, high = (round(value * quote.dataset.num_rows) for value in mean_with_bounds(lengths))
        unsettled.update(
            status=Status.READY,
            output_tokens=mean,
            output_tokens_low=low,
            output_tokens_high=high,
            stages=None if quote.pipeline is None else _stages(quote, pilot, lengths),
        )
    quote.refresh_from_db()
    return quote


def _has_ended(quote: Quote, pilot: Batch) -> bool:
    """Returns whether the pilot has ended, and, if the quote needs it, whether its device time is in the ledger."""
    return pilot.status in TERMINAL and (quote.pipeline is None or pilot.job.status in JOB_ENDED)


def _stages(quote: Quote, pilot: Batch, lengths: list[int]) -> list[dict[str, Any]]:
    """Returns the value of `Quote.stages`."""
    attempts = LedgerLine.objects.filter(subject=Subject.BATCH_TIME, object_id=pilot.job_id)
    last = attempts.filter(credit_reason=None).order_by("ended_at").last()
    kind = device_kind() if last is None else last.device_kind
    mean, low, high = mean_with_bounds(lengths)
    # A pilot on the hardware that was asked for has the price of this hardware, which may differ from that of its kind.
    is_asked_for = last is not None and quote.pipeline is not None and bool(quote.pipeline.get("hardware"))
    facts = PilotFacts(
        num_rows=len(lengths),
        device_seconds=0.0 if last is None else last.count / 1000,
        device_kind=kind,
        hour_nanousd=hour_price(kind) if last is None else last.price_nanousd,
        endpoint_hour_nanousd=last.price_nanousd if last is not None and is_asked_for else hour_price(kind),
        answer_tokens=Interval(low, mean, high),
    )
    dataset = DatasetFacts(
        num_rows=quote.dataset.num_rows, input_nanousd=quote.input_nanousd, output_nanousd=quote.output_nanousd
    )
    assert quote.pipeline is not None, "only the quote of a pipeline has stages"
    return estimate_stages(quote.pipeline, facts, dataset)


@audited("quote.update")
@transaction.atomic
def quote_cap_set(*, quote: Quote, nanousd: int | None) -> Quote:
    """Sets the cap; None removes it.

    Effects: resumes paused batches and jobs that are now below their caps.
    """
    Quote.objects.filter(pk=quote.pk).update(cap_nanousd=nanousd)
    quote.refresh_from_db()
    batches_resume(quote.organization_id)
    jobs_resume(quote)
    return quote
