"""Requests and responses of distillations."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.billing.usage.schemas import Amount
from control.core.api.metadata import Metadata
from control.core.api.schemas import OneOf, RequestModel, ResponseModel, Text, Unix
from control.queue.jobs.schemas import Paused
from control.workflows.batches.models import Batch
from control.workflows.batches.schemas import BatchObject, BatchUsage, LineErrors, RequestCounts
from control.workflows.distillations.models import Distillation


class DistillationInput(RequestModel):
    model: Annotated[str, Text(120)]
    prompts_file: Annotated[str, Text(80)]
    quote_id: Annotated[str, Text(40)] | None = None
    metadata: Metadata | None = None


class DistillationObject(ResponseModel):
    id: str
    object: Literal["distillation"] = "distillation"
    prompts_file: str
    batch_id: str = Field(description="The batch that does the work.")
    model: str | None
    status: Annotated[str, OneOf(Batch.Status)] = Field(description="The status of the batch.")
    errors: LineErrors | None
    output_file_id: str | None
    error_file_id: str | None
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
        """`distillation` comes from `distillations_list`. Members that are not given here have the batch's values."""
        batch = BatchObject.of(distillation.batch)
        return cls.from_row(
            batch,
            id=distillation.pk,
            prompts_file=batch.input_file_id,
            batch_id=batch.id,
            is_trainable=bool(distillation.batch.tokens_key),
            created_at=distillation.created_at,
        )
