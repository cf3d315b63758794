"""Members of requests and responses that describe the contents of files: duplicates, secrets and personal data."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field

from control.core.api.schemas import OneOf, ResponseModel
from control.workflows.prompt_files.contamination import OnContamination
from control.workflows.prompt_files.sensitive import OnSensitive
from control.workflows.prompt_files.sensitive_passes import RECOGNISERS


class TwinLines(ResponseModel):
    line: int
    other_line: int = Field(
        description="The line of the first prompt that is equal or similar to the prompt in `line`."
    )


class TwinCount(ResponseModel):
    num_rows: int
    examples: list[TwinLines] = Field(description="The first ten pairs of lines.")


class Duplicates(ResponseModel):
    """Equal and similar prompts within one file. Of equal prompts, the first one is not counted."""

    exact: TwinCount = Field(description="Prompts that equal another prompt except for white space.")
    near: TwinCount = Field(description="Prompts that are not counted in `exact` and are similar to another prompt.")

    @classmethod
    def of(cls, report: Mapping[str, Any] | None) -> Self | None:
        return None if report is None else cls.model_validate(report)


class Overlap(Duplicates):
    """Training prompts that are equal or similar to held-out prompts.

    `line` is the line of the training prompt, and `other_line` is the line of the held-out prompt.
    """


class Contamination(Overlap):
    policy: Annotated[str, OneOf(OnContamination)]
    num_dropped: int = Field(description="Training prompts that were left out.")


OnSensitiveOption = Annotated[
    Annotated[str, OneOf(OnSensitive)] | None,
    Field(
        description="What happens to secrets and personal data in the file. `warn`: they are counted. `redact`: a new "
        "file has placeholders in their place. `refuse`: the request is refused. Null means that the file is not "
        "scanned."
    ),
]


class SensitiveKind(ResponseModel):
    kind: Annotated[str, OneOf(RECOGNISERS)]
    num_found: int
    num_rows: int
    lines: list[int] = Field(description="The numbers of the first ten lines.")


class Sensitive(ResponseModel):
    """Secrets and personal data that were found in a file. Their values are not kept."""

    policy: Annotated[str, OneOf(OnSensitive)]
    original_file_id: str | None = Field(description="The scanned file, of which a redacted copy was made.")
    num_rows: int = Field(description="Rows in which something was found.")
    num_found: int
    num_unread_lines: int = Field(description="Lines that could not be scanned, because they are not JSON objects.")
    kinds: list[SensitiveKind]

    @classmethod
    def of(cls, report: Mapping[str, Any] | None) -> Self | None:
        return None if report is None else cls.model_validate(report)
