"""Requests and responses of quotes."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.billing.spending.schemas import Dollars
from control.billing.usage.schemas import Amount
from control.core.api.schemas import Figures, IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.models.engines.schemas import MAX_FURTHER_ARMS, Hardware
from control.workflows.batches.caps import quote_spent_nanousd
from control.workflows.quotes.models import Quote
from control.workflows.quotes.stages import STAGES
from workers.kinds import REQUESTED_KINDS


class QuotedTraining(RequestModel):
    kind: Annotated[str, OneOf(REQUESTED_KINDS)] = "medusa"
    max_seconds: Annotated[float, Field(ge=0.1, le=2_592_000)] = Field(
        description="The hyperparameter `max_seconds` of the training, which limits its time."
    )


class QuotedEvaluation(RequestModel):
    concurrencies: Annotated[list[Annotated[int, IntRange(1, 256)]], Field(min_length=1, max_length=8)] = [1]
    max_tokens: Annotated[int, IntRange(1)] | None = None
    held_out: Annotated[int, IntRange(1)] | None = Field(
        default=None, description="The number of held-out prompts. Null means a tenth of the rows, as in a pipeline."
    )
    compare_with: list[Annotated[str, Text(80)]] = Field(
        default=[],
        max_length=MAX_FURTHER_ARMS,
        description="Further arms of the evaluation; each makes it dearer. The pipeline checks them.",
    )


class QuotedEndpoint(RequestModel):
    replicas: Annotated[int, IntRange(1, 1024)] = 1
    hours: Annotated[int, IntRange(1, 744)] = Field(
        default=730, description="The number of hours that the endpoint runs in the first month."
    )


class QuotedPipeline(RequestModel):
    """The pipeline that is estimated. `POST /v1/pipelines` takes the same values, and the quote's id."""

    training: QuotedTraining
    evaluation: QuotedEvaluation = QuotedEvaluation()
    endpoint: QuotedEndpoint | None = Field(default=QuotedEndpoint(), description="Null: without an endpoint.")
    hardware: Hardware = None


class QuoteInput(RequestModel):
    dataset_id: Annotated[str, Text(80)] = Field(description="An id, `NAME@VERSION` or `NAME@latest`.")
    basis: Annotated[str, OneOf(Quote.Basis)] = "pilot"
    cap: Annotated[
        Dollars | None,
        Field(
            description="US dollars. The work that is created with the quote is paused when its total cost reaches "
            "this amount."
        ),
    ] = None
    pipeline: QuotedPipeline | None = Field(
        default=None,
        description="Estimates a pipeline with the dataset's rows. Null means that only a batch is estimated.",
    )


class QuoteUpdateInput(RequestModel):
    cap: Dollars | None = Field(description="US dollars. Null means that there is no cap.")


class QuoteStage(ResponseModel):
    """One line of the quote of a pipeline."""

    name: Annotated[str, OneOf(STAGES)]
    cost_low: Amount
    cost: Amount
    cost_high: Amount
    device_seconds_low: float
    device_seconds: float
    device_seconds_high: float
    device_kind: str
    price_per_device_hour: Amount | None = Field(
        description="The price of one hour of a device. Null if the operators have set no price; device time is then "
        "free."
    )
    rests_on: list[str] = Field(
        description="The measurements, limits, plans and prices from which the line was computed."
    )

    @classmethod
    def of(cls, stage: Figures) -> Self:
        costs, seconds = [Amount.of(cost) for cost in stage["nanousd"]], stage["device_seconds"]
        price = stage["hour_nanousd"]
        return cls(
            name=stage["name"],
            cost_low=costs[0],
            cost=costs[1],
            cost_high=costs[2],
            device_seconds_low=seconds[0],
            device_seconds=seconds[1],
            device_seconds_high=seconds[2],
            device_kind=stage["device_kind"],
            price_per_device_hour=None if price is None else Amount.of(price),
            rests_on=stage["rests_on"],
        )


class QuoteObject(ResponseModel):
    """Estimates what a batch of the dataset's rows, or a pipeline with these rows, will cost.

    The bounds of a batch are a 95 % confidence interval. A quote from history has no bounds, because only sums over
    earlier batches are stored. The bounds of a pipeline are the sums of the bounds of its stages.
    """

    id: str
    object: Literal["quote"] = "quote"
    dataset_id: str
    model: str | None
    status: Annotated[str, OneOf(Quote.Status)]
    basis: Annotated[str, OneOf(Quote.Basis)]
    pilot_batch_id: str | None
    num_rows: int
    input_tokens: SkipValidation[int]  # never null: the tokens of a quote's dataset are counted
    input_tokens_exact: bool
    output_tokens: int | None
    output_tokens_low: int | None
    output_tokens_high: int | None
    cost: Amount | None
    cost_low: Amount | None
    cost_high: Amount | None
    pipeline: SkipValidation[Figures | None] = Field(description="The pipeline of the request.")
    stages: list[QuoteStage] | None = Field(
        description="One line for each stage of the pipeline, and one for the endpoint. Null for a batch, and until "
        "the quote is ready."
    )
    cap: Amount | None = Field(description="The limit of the total cost of the work that is created with the quote.")
    spent: Amount = Field(
        description="The total cost so far of the work that was created with the quote: tokens of batches, and device "
        "time of pipelines and their endpoints, including running attempts. Credits are subtracted."
    )
    created_at: Unix

    @classmethod
    def of(cls, quote: Quote) -> Self:
        dataset, costs = quote.dataset, _costs(quote)
        spent = quote_spent_nanousd(quote.pk) if quote.spent_nanousd is None else quote.spent_nanousd
        return cls.from_row(
            quote,
            model=None if dataset.base_model is None else dataset.base_model.name,
            pilot_batch_id=quote.pilot_id,
            num_rows=dataset.num_rows,
            input_tokens=dataset.num_tokens,
            input_tokens_exact=dataset.tokens_are_exact,
            cost_low=costs[0],
            cost=costs[1],
            cost_high=costs[2],
            stages=None if quote.stages is None else [QuoteStage.of(stage) for stage in quote.stages],
            cap=None if quote.cap_nanousd is None else Amount.of(quote.cap_nanousd),
            spent=Amount.of(spent),
        )


def _costs(quote: Quote) -> list[Amount | None]:
    """Returns the lower bound, the expected cost and the upper bound."""
    if quote.stages is not None:
        return [Amount.of(sum(stage["nanousd"][place] for stage in quote.stages)) for place in range(3)]
    tokens = (quote.output_tokens_low, quote.output_tokens, quote.output_tokens_high)
    if quote.pipeline is not None:
        return [None] * len(tokens)
    return [
        None if number is None else Amount.of(quote.input_nanousd + number * quote.output_nanousd) for number in tokens
    ]
