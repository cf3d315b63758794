"""Requests and responses of quotes."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.billing.spending.schemas import Dollars
from control.billing.usage.schemas import Amount
from control.core.api.schemas import OneOf, RequestModel, ResponseModel, Text, Unix
from control.workflows.batches.caps import quote_spent_nanousd
from control.workflows.quotes.models import Quote


class QuoteInput(RequestModel):
    dataset_id: Annotated[str, Text(80)] = Field(description="An id, `NAME@VERSION` or `NAME@latest`.")
    basis: Annotated[str, OneOf(Quote.Basis)] = "pilot"
    cap: Annotated[
        Dollars | None, Field(description="US dollars. The quote's batches are paused when they have cost this in all.")
    ] = None


class QuoteUpdateInput(RequestModel):
    cap: Dollars | None = Field(description="US dollars. Null: no cap.")


class QuoteObject(ResponseModel):
    """Estimates what a batch of the dataset's rows will cost.

    The bounds are a 95 % confidence interval. A quote from history has no bounds, because only sums over earlier
    batches are stored.
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
    cap: Amount | None = Field(description="The limit of the total cost of the quote's batches.")
    spent: Amount = Field(description="The total cost so far of the quote's batches.")
    created_at: Unix

    @classmethod
    def of(cls, quote: Quote) -> Self:
        dataset = quote.dataset
        return cls.from_row(
            quote,
            model=None if dataset.base_model is None else dataset.base_model.name,
            pilot_batch_id=quote.pilot_id,
            num_rows=dataset.num_rows,
            input_tokens=dataset.num_tokens,
            input_tokens_exact=dataset.tokens_are_exact,
            cost=_cost(quote, quote.output_tokens),
            cost_low=_cost(quote, quote.output_tokens_low),
            cost_high=_cost(quote, quote.output_tokens_high),
            cap=None if quote.cap_nanousd is None else Amount.of(quote.cap_nanousd),
            spent=Amount.of(quote_spent_nanousd(quote.pk)),
        )


def _cost(quote: Quote, output_tokens: int | None) -> Amount | None:
    if output_tokens is None:
        return None
    return Amount.of(quote.input_nanousd + output_tokens * quote.output_nanousd)
