"""Quotes as the API shows them, and what a request for one may say."""

from typing import Any

from rest_framework import serializers

from control.billing.spending.schemas import MAX_USD
from control.billing.usage.schemas import Amount
from control.core.api.fields import BodyInput, Choice
from control.core.api.times import unix
from control.workflows.batches.caps import quote_spent_nanousd
from control.workflows.quotes.models import Quote


class DollarsField(serializers.DecimalField):
    def __init__(self, **options: Any) -> None:
        super().__init__(
            max_digits=19, decimal_places=9, min_value=0, max_value=MAX_USD, coerce_to_string=False, **options
        )


def quote_body(quote: Quote) -> dict[str, Any]:
    dataset = quote.dataset
    return {
        "id": quote.pk,
        "object": "quote",
        "dataset_id": dataset.pk,
        "model": dataset.base_model.name if dataset.base_model else None,
        "status": quote.status,
        "basis": quote.basis,
        "pilot_batch_id": quote.pilot_id,
        "num_rows": dataset.num_rows,
        "input_tokens": dataset.num_tokens,
        "input_tokens_exact": dataset.tokens_are_exact,
        "output_tokens": quote.output_tokens,
        "output_tokens_low": quote.output_tokens_low,
        "output_tokens_high": quote.output_tokens_high,
        "cost": _cost(quote, quote.output_tokens),
        "cost_low": _cost(quote, quote.output_tokens_low),
        "cost_high": _cost(quote, quote.output_tokens_high),
        "cap": None if quote.cap_nanousd is None else Amount.of(quote.cap_nanousd).as_json(),
        "spent": Amount.of(quote_spent_nanousd(quote.pk)).as_json(),
        "created_at": unix(quote.created_at),
    }


def _cost(quote: Quote, output_tokens: int | None) -> dict[str, Any] | None:
    if output_tokens is None:
        return None
    return Amount.of(quote.input_nanousd + output_tokens * quote.output_nanousd).as_json()


class QuoteInput(BodyInput):
    dataset_id = serializers.CharField(max_length=40)
    basis = Choice(choices=Quote.Basis.choices, default=Quote.Basis.PILOT)
    cap = DollarsField(allow_null=True, default=None, help_text="US dollars; what is run under the quote pauses there.")


class QuoteUpdateInput(BodyInput):
    cap = DollarsField(allow_null=True, help_text="US dollars; null: none.")
