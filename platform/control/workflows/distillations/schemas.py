"""Requests and responses of distillations."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.billing.usage.schemas import Amount
from control.core.api.errors import ApiError
from control.core.api.metadata import Metadata
from control.core.api.schemas import IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.models.engines.schemas import EngineOptions, Hardware, ValidateOnly
from control.queue.jobs.schemas import Paused
from control.workflows.batches.models import Batch
from control.workflows.batches.schemas import BatchObject, BatchUsage, LineErrors, RequestCounts, Truncated
from control.workflows.distillations.models import Distillation
from control.workflows.prompt_files.schemas import Duplicates


class DistillationOptions(RequestModel):
    """What happens to answers that reach the length limits of their rows."""

    on_truncation: Annotated[str, OneOf(Batch.OnTruncation)] = Field(
        default=Batch.OnTruncation.KEEP.value,
        description="What happens to answers that reach the length limits of their rows. `keep`: training uses them "
        "without an end. `drop`: training leaves them out. `continue`: the model continues them as if the limit had "
        "been higher; answers that still have no end are kept.",
    )
    max_continued_tokens: Annotated[int, IntRange(1, 1 << 24)] | None = Field(
        default=None,
        description="The maximum number of tokens of a continued answer, including its reasoning trace. A row with a "
        "higher limit keeps its limit. Null means as many as fit into the context. Only with `on_truncation: "
        "continue`.",
    )

    def check(self, param: str = "max_continued_tokens") -> None:
        """Raises: ApiError: 400, the limit would have no effect."""
        if self.max_continued_tokens is not None and self.on_truncation != Batch.OnTruncation.CONTINUE:
            message = f"{param} needs on_truncation 'continue', got {self.on_truncation!r}"
            raise ApiError(400, message, "invalid_value", param)


class DistillationRequest(DistillationOptions):
    model: Annotated[str, Text(120)]
    prompts_file: Annotated[str, Text(80)]
    quote_id: Annotated[str, Text(40)] | None = None
    metadata: Metadata | None = None
    engine: EngineOptions | None = None
    hardware: Hardware = None


class DistillationInput(DistillationRequest):
    validate_only: ValidateOnly = False


class DistillationObject(ResponseModel):
    id: str
    object: Literal["distillation"] = "distillation"
    prompts_file: str
    duplicates: Duplicates | None = Field(
        description="Equal and similar prompts of `prompts_file`. Null if the prompts could not be compared."
    )
    batch_id: str = Field(description="The batch that answers the prompts.")
    model: str | None
    status: Annotated[str, OneOf(Batch.Status)] = Field(description="The status of the batch.")
    errors: LineErrors | None
    output_file_id: str | None
    error_file_id: str | None
    on_truncation: Annotated[str, OneOf(Batch.OnTruncation)]
    max_continued_tokens: int | None
    engine: EngineOptions
    hardware: str | None = Field(description="The requested device. Null means any device.")
    truncated: Truncated | None = Field(
        description="The numbers of answers that reached a length limit. Null until the batch has ended."
    )
    request_counts: RequestCounts
    usage: BatchUsage
    paused: SkipValidation[Paused | None]
    cost: Amount = Field(description="The cost so far.")
    quote_id: str | None
    metadata: SkipValidation[dict[str, str]]
    is_trainable: bool = Field(description="Whether there are answers that pipelines can train on.")
    created_at: Unix

    @classmethod
    def of(cls, distillation: Distillation) -> Self:
        """Builds the response. Args: distillation: a row of `distillations_list`.

        The members that are not given explicitly have the batch's values.
        """
        batch = BatchObject.of(distillation.batch)
        return cls.from_row(
            batch,
            id=distillation.pk,
            prompts_file=batch.input_file_id,
            duplicates=Duplicates.of(distillation.duplicates),
            batch_id=batch.id,
            on_truncation=distillation.batch.on_truncation,
            max_continued_tokens=distillation.batch.max_continued_tokens,
            is_trainable=bool(distillation.batch.tokens_key),
            created_at=distillation.created_at,
        )
