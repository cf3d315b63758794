"""Writers of quotes.

measuring ──pilot ends──> ready | failed
"""

import datetime as dt

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from control.billing.usage.models import UsageRecord
from control.billing.usage.selectors import price_of
from control.core.api.errors import ApiError
from control.core.ids import quote_id
from control.core.storage.backends import ObjectMissing
from control.core.storage.undo import stored_bytes_undone
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.workflows.batches.state import TERMINAL
from control.workflows.datasets.models import Dataset
from control.workflows.quotes.models import Quote
from control.workflows.quotes.pilot import answer_lengths, pilot_start, spread

HISTORY = dt.timedelta(days=90)
MIN_REQUESTS = 20  # of the past, to say something about the future
Status, Basis = Quote.Status, Quote.Basis


@audited("quote.create")
def quote_create(
    *, organization: Organization, dataset: Dataset, basis: Quote.Basis, cap_nanousd: int | None = None
) -> Quote:
    """At the prices in force. With a pilot, a batch of a few of the rows is run, and paid for.

    Raises: ApiError: 409, the dataset is not valid or its tokens are not counted, or there is no history.
    """
    model = dataset.base_model
    if model is None or dataset.num_tokens is None or dataset.status != Dataset.Status.VALID or not dataset.num_rows:
        message = "A quote needs a valid dataset with a `model`, so that its tokens are counted."
        raise ApiError(409, message, "dataset_not_quotable", "dataset_id")
    price, identity = price_of(model.name), quote_id()
    mean = _mean_of_history(organization, model.name) if basis is Basis.HISTORY else None
    with stored_bytes_undone(), transaction.atomic():
        return Quote.objects.create(
            id=identity,
            organization=organization,
            dataset=dataset,
            basis=basis,
            pilot=pilot_start(dataset, quote_id=identity) if mean is None else None,
            status=Status.MEASURING if mean is None else Status.READY,
            output_tokens=None if mean is None else round(mean * dataset.num_rows),
            input_nanousd=dataset.num_tokens * price.input_nanousd * price.batch_percent // 100,
            cap_nanousd=cap_nanousd,
            output_nanousd=price.output_nanousd * price.batch_percent // 100,
        )


def _mean_of_history(organization: Organization, model: str) -> float:
    """Output tokens of a row. Raises: ApiError: 409."""
    past = UsageRecord.objects.filter(
        organization=organization, model=model, is_batch=True, minute__gte=timezone.now() - HISTORY
    ).aggregate(tokens=Sum("output_tokens"), requests=Sum("requests"))
    if (past["requests"] or 0) < MIN_REQUESTS:
        message = f"Fewer than {MIN_REQUESTS} rows were answered by {model!r} lately; ask with the basis `pilot`."
        raise ApiError(409, message, "no_history", "basis")
    return float(past["tokens"] / past["requests"])


def quote_settle(*, quote: Quote) -> Quote:
    """Takes over what the pilot found, once it has ended. May be called at any time."""
    pilot = quote.pilot
    if quote.status != Status.MEASURING or (pilot is not None and pilot.status not in TERMINAL):
        return quote
    try:
        lengths = answer_lengths(pilot) if pilot is not None and pilot.tokens_key else []
    except ObjectMissing:  # its files were deleted before anybody asked
        lengths = []
    measuring = Quote.objects.filter(pk=quote.pk, status=Status.MEASURING)
    if not lengths:
        measuring.update(status=Status.FAILED)
    else:
        mean, low, high = (round(value * quote.dataset.num_rows) for value in spread(lengths))
        measuring.update(status=Status.READY, output_tokens=mean, output_tokens_low=low, output_tokens_high=high)
    quote.refresh_from_db()
    return quote
