"""Carries out requests for quotes that come from the API or the console."""

from control.billing.spending.schemas import nanousd
from control.billing.usage.schemas import Amount
from control.core.api.errors import ApiError
from control.core.api.forms import ConsoleForm, row_choices
from control.models.catalog.hyperparameters import hyperparameters_check
from control.queue.devices.selectors import hardware_check
from control.tenants.accounts.models import Organization
from control.workflows.datasets.selectors import dataset_get, datasets_list
from control.workflows.quotes.models import Quote
from control.workflows.quotes.schemas import QuotedPipeline, QuoteInput, QuoteUpdateInput
from control.workflows.quotes.selectors import quote_get
from control.workflows.quotes.services import quote_cap_set, quote_create


def create_from(organization: Organization, body: QuoteInput) -> Quote:
    """Raises: ApiError: 400, an invalid pipeline; 404, no such dataset; or as `quote_create`."""
    if body.pipeline is not None:
        _check_pipeline(body.pipeline, body.basis)
    return quote_create(
        organization=organization,
        dataset=dataset_get(organization, body.dataset_id),
        basis=Quote.Basis(body.basis),
        cap_nanousd=_cap(body),
        pipeline=None if body.pipeline is None else body.pipeline.model_dump(),
    )


def _check_pipeline(pipeline: QuotedPipeline, basis: str) -> None:
    """Raises: ApiError: 400, also if no device that is present is the wanted hardware."""
    if basis != Quote.Basis.PILOT:
        message = "the quote of a pipeline needs the basis pilot, which measures the device time of the model's answers"
        raise ApiError(400, message, "invalid_value", "basis")
    try:
        hardware_check(pipeline.hardware)
    except ApiError as error:
        raise ApiError(error.status, f"pipeline.{error.message}", error.code, "pipeline.hardware") from error
    kind, limit = pipeline.training.kind, {"max_seconds": pipeline.training.max_seconds}
    hyperparameters_check(kind, limit, param="pipeline.training", kind_param="pipeline.training.kind")


def update_from(quote: Quote, body: QuoteUpdateInput) -> Quote:
    return quote_cap_set(quote=quote, nanousd=_cap(body))


def _cap(body: QuoteInput | QuoteUpdateInput) -> int | None:
    return None if body.cap is None else nanousd(body.cap)


CREATE_QUOTE = ConsoleForm(
    title="Quote a price",
    request=QuoteInput,
    run=create_from,
    choices=lambda organization: {"dataset_id": row_choices(datasets_list(organization))},
)

CHANGE_CAP = ConsoleForm(
    title="Change the cap",
    request=QuoteUpdateInput,
    run=lambda row, body: update_from(quote_get(row.organization, row.pk), body),
    initial=lambda row: {"cap": None if row.cap_nanousd is None else Amount.of(row.cap_nanousd).value},
)
