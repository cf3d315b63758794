"""Objects of responses that describe duplicates of prompts."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from control.core.api.schemas import OneOf, ResponseModel
from control.workflows.prompt_files.contamination import OnContamination


class TwinLines(ResponseModel):
    line: int
    other_line: int = Field(description="The line of the first prompt that is like it.")


class TwinCount(ResponseModel):
    num_rows: int
    examples: list[TwinLines] = Field(description="The first ten.")


class Duplicates(ResponseModel):
    """Equal and similar prompts within one file. Of equal prompts, the first one is not counted."""

    exact: TwinCount = Field(description="Prompts that equal an earlier one, apart from white space.")
    near: TwinCount = Field(description="Further prompts that are similar to an earlier one.")

    @classmethod
    def of(cls, report: Mapping[str, Any] | None) -> Self | None:
        return None if report is None else cls.model_validate(report)


class Overlap(Duplicates):
    """Training prompts that are like held-out prompts. `line` is in the training file, `other_line` held out."""


class Contamination(Overlap):
    policy: Annotated[str, OneOf(OnContamination)]
    num_dropped: int = Field(description="Training prompts that were left out.")
