"""Quotes as we answer them."""

from typing import Literal

from pydantic import Field

from control.billing.usage.schemas import Amount
from control.operations.openapi.shapes import Shape, Unix


class QuoteObject(Shape):
    """Of a batch of the dataset's rows. Bounds hold for 95 of 100 quotes; of earlier batches only sums are known."""

    id: str
    object: Literal["quote"]
    dataset_id: str
    model: str | None
    status: Literal["measuring", "ready", "failed"]
    basis: Literal["pilot", "history"]
    pilot_batch_id: str | None
    num_rows: int
    input_tokens: int
    input_tokens_exact: bool
    output_tokens: int | None
    output_tokens_low: int | None
    output_tokens_high: int | None
    cost: Amount | None
    cost_low: Amount | None
    cost_high: Amount | None
    cap: Amount | None = Field(description="What is run under the quote may cost this together.")
    spent: Amount = Field(description="By what was run under it, so far.")
    created_at: Unix
