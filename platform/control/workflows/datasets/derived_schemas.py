"""Requests for datasets that are made of others: filters and mixes."""

from typing import Annotated, Literal

from pydantic import Field

from control.core.api.errors import ApiError
from control.core.api.schemas import IntRange, RequestModel, Text
from control.data.recognisers.recogniser import InvalidPattern, compiled
from control.workflows.datasets.schemas import NAME_PATTERN
from control.workflows.prompt_files.validation import MAX_ROWS

MAX_SOURCES = 16
_MAX_PATTERN = 500
_Name = Annotated[str, Text(64, pattern=NAME_PATTERN)]
_Length = Annotated[int, IntRange(0, 1 << 30)]
_Seed = Annotated[int, IntRange(0, (1 << 32) - 1)]
_Values = Annotated[list[Annotated[str, Field(max_length=256)]], Field(min_length=1, max_length=64)]
_PATTERN = "a pattern in the syntax of RE2."


class FilterInput(RequestModel):
    """The new dataset has the rows for which all given conditions hold, unchanged and in their order."""

    name: _Name | None = Field(
        default=None,
        description="The dataset becomes the next version of this name. Null: of the name of the filtered dataset.",
    )
    labels: Annotated[dict[Annotated[str, Text(64)], _Values], Field(min_length=1, max_length=16)] | None = Field(
        default=None, description="Members of the rows, and the values that each of them may have."
    )
    has_answer: bool | None = None
    contains: Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN)] | None = Field(
        default=None, description="A text that messages, prompt or answer contain."
    )
    matches: Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN)] | None = Field(
        default=None, description=f"Messages, prompt or answer match {_PATTERN}"
    )
    excludes: Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN)] | None = Field(
        default=None, description=f"Neither messages, prompt nor answer match {_PATTERN}"
    )
    min_characters: _Length | None = Field(default=None, description="Of all messages, the prompt and the answer.")
    max_characters: _Length | None = None
    min_tokens: _Length | None = Field(default=None, description="Of prompt and answer. The dataset needs a `model`.")
    max_tokens: _Length | None = None
    drop_duplicates: Literal["exact", "near"] | None = Field(
        default=None,
        description="Of the rows with equal prompts that pass, the first one is kept. `near`: also of similar prompts, "
        "as `duplicates` of a dataset counts them.",
    )
    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="The share of the prompts that is kept. The hash of seed and prompt decides, so the same prompts "
        "are kept of each version of a dataset.",
    )
    rows: Annotated[int, IntRange(1, MAX_ROWS)] | None = Field(
        default=None, description="At most so many of the rows that pass. The hash of seed and prompt decides which."
    )
    seed: _Seed = Field(default=0, description="Of `share` and `rows`.")

    def check(self) -> None:
        """Raises: ApiError: 400, no condition, an empty range, or an invalid pattern."""
        conditions = [name for name in FilterInput.model_fields if name not in ("name", "seed")]
        if all(getattr(self, name) is None for name in conditions):
            message = f"a filter needs a condition: {', '.join(conditions)}"
            raise ApiError(400, message, "missing_required_parameter", "matches")
        for unit in ("characters", "tokens"):
            low, high = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if low is not None and high is not None and low > high:
                message = f"min_{unit} must be at most max_{unit}, got {low} and {high}"
                raise ApiError(400, message, "invalid_value", f"min_{unit}")
        for param in ("matches", "excludes"):
            if (pattern := getattr(self, param)) is not None:
                try:
                    compiled(pattern)
                except InvalidPattern as error:
                    raise ApiError(400, str(error), "invalid_pattern", param) from error


class MixSource(RequestModel):
    dataset_id: Annotated[str, Text(120)]
    weight: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0


class MixInput(RequestModel):
    """The new dataset has rows of several datasets, unchanged, in the proportion of their weights."""

    sources: Annotated[list[MixSource], Field(min_length=1, max_length=MAX_SOURCES)]
    rows: Annotated[int, IntRange(1, MAX_ROWS)] | None = Field(
        default=None, description="The rows of the mix. Null: as many as the sources have in this proportion."
    )
    seed: _Seed = Field(default=0, description="The hash of seed and prompt decides which rows of a source are used.")
    name: _Name | None = Field(default=None, description="The dataset becomes the next version of this name.")
