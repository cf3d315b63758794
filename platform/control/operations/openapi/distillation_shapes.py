"""Distillations as we answer them."""

from typing import Literal

from pydantic import Field

from control.billing.usage.schemas import Amount
from control.operations.openapi.openai_shapes import BatchUsage, LineErrors, RequestCounts
from control.operations.openapi.shapes import Shape, Unix
from control.queue.jobs.schemas import Paused


class DistillationObject(Shape):
    id: str
    object: Literal["distillation"]
    prompts_file: str
    batch_id: str = Field(description="Does the work.")
    model: str | None
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ] = Field(description="As of its batch.")
    errors: LineErrors | None
    output_file_id: str | None
    error_file_id: str | None
    request_counts: RequestCounts
    usage: BatchUsage
    paused: Paused | None
    cost: Amount = Field(description="So far.")
    quote_id: str | None
    metadata: dict[str, str]
    is_trainable: bool = Field(description="There are answers: pipelines may name it.")
    created_at: Unix
