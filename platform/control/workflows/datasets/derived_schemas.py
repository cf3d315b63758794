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
    """The new dataset has the rows for which all given conditions are true, unchanged and in their order."""

    name: _Name | None = Field(
        default=None,
        description="The dataset becomes the next version of this name. Null means the name of the filtered dataset.",
    )
    labels: Annotated[dict[Annotated[str, Text(64)], _Values], Field(min_length=1, max_length=16)] | None = Field(
        default=None, description="Maps members of the rows to the values that the members may have."
    )
    has_answer: bool | None = None
    contains: Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN)] | None = Field(
        default=None, description="A text that the messages, the prompt or the answer must contain."
    )
    matches: Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN)] | None = Field(
        default=None, description=f"The messages, the prompt or the answer must match {_PATTERN}"
    )
    excludes: Annotated[str, Field(min_length=1, max_length=_MAX_PATTERN)] | None = Field(
        default=None, description=f"Neither the messages, the prompt nor the answer may match {_PATTERN}"
    )
    min_characters: _Length | None = Field(
        default=None,
        description="The minimum number of characters of all messages, the prompt and the answer together.",
    )
    max_characters: _Length | None = None
    min_tokens: _Length | None = Field(
        default=None,
        description="The minimum number of tokens of prompt and answer together. The dataset needs a `model`.",
    )
    max_tokens: _Length | None = None
    drop_duplicates: Literal["exact", "near"] | None = Field(
        default=None,
        description="`exact`: of several passing rows with equal prompts, only the first row is kept. `near`: the same "
        "applies to rows with similar prompts, as `duplicates` of a dataset counts them.",
    )
    share: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="The share of prompts to keep. A hash of seed and prompt selects the prompts, so the same prompts "
        "are kept in all versions of a dataset.",
    )
    rows: Annotated[int, IntRange(1, MAX_ROWS)] | None = Field(
        default=None,
        description="The maximum number of rows. If more rows pass, a hash of seed and prompt selects the rows.",
    )
    seed: _Seed = Field(default=0, description="The seed of the hashes for `share` and `rows`.")

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
        default=None,
        description="The number of rows of the mix. Null means as many rows as the sources have in this proportion.",
    )
    seed: _Seed = Field(default=0, description="The hash of seed and prompt decides which rows of a source are used.")
    name: _Name | None = Field(default=None, description="The dataset becomes the next version of this name.")
