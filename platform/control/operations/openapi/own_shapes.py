"""Our own objects as we answer them."""

from typing import Any, Literal

from pydantic import Field

from control.core.api.schemas import Failure
from control.operations.openapi.openai_shapes import Amount
from control.operations.openapi.shapes import Figures, Paused, Shape, Unix
from control.queue.jobs.schemas import Progress


class SpeculatorObject(Shape):
    id: str
    object: Literal["speculator"]
    name: str
    version: int
    kind: str
    model: str
    status: Literal["training", "ready", "failed"]
    target_revision: str
    training: Figures
    report: Figures | None
    created_at: Unix


class DatasetErrors(Shape):
    object: Literal["list"]
    data: list[Figures]
    total_count: int
    by_code: dict[str, int]


class DatasetObject(Shape):
    id: str
    object: Literal["dataset"]
    file_id: str
    model: str | None
    status: Literal["valid", "invalid"]
    format: Literal["batch", "chat", "prompt"] | None
    bytes: int
    num_rows: int
    num_answers: int
    num_tokens: int | None
    num_tokens_exact: bool | None
    errors: DatasetErrors
    created_at: Unix


class DatasetErrorList(Shape):
    object: Literal["list"]
    data: list[Figures]
    total_count: int
    is_complete: bool
    first_id: None
    last_id: None
    has_more: Literal[False]


class PreviewRows(Shape):
    object: Literal["list"]
    data: list[Figures]
    first_id: None
    last_id: None
    has_more: Literal[False]


class JobObject(Shape):
    id: str
    object: Literal["job"]
    kind: str
    status: Literal["queued", "running", "paused", "succeeded", "failed", "cancelled"]
    attempt: int
    paused: Paused | None
    progress: Progress | None
    metrics: Figures
    result: Figures
    error: Figures | None
    created_at: Unix
    started_at: Unix | None
    finished_at: Unix | None
    cancel_requested_at: Unix | None


class JobEventObject(Shape):
    id: str
    object: Literal["job.event"]
    job_id: str
    type: str
    data: Figures
    created_at: Unix


class StageObject(Shape):
    name: Literal["distil", "train", "evaluate", "gate", "deploy"]
    status: Literal["pending", "running", "succeeded", "failed", "cancelled", "skipped"]
    job_id: str | None
    paused: Paused | None
    progress: Progress | None
    metrics: Figures
    started_at: Unix | None
    finished_at: Unix | None


class PipelineObject(Shape):
    id: str
    object: Literal["pipeline"]
    name: str
    model: str
    status: Literal[
        "distilling", "training", "evaluating", "gating", "deploying", "live", "succeeded", "rejected", "failed",
        "cancelled",
    ]  # fmt: skip
    prompts_file: str
    held_out_file: str
    training: Figures
    evaluation: Figures
    gate: Figures
    deploy: bool
    stages: list[StageObject]
    batch_id: str | None
    speculator_id: str | None
    deployment_id: str | None
    quote_id: str | None = Field(description="Whose cap pauses it.")
    cost: Amount = Field(description="So far.")
    report: Figures | None
    error: Failure | None
    created_at: Unix
    finished_at: Unix | None


class UsageTotal(Shape):
    object: Literal["usage"]
    start_time: Unix
    end_time: Unix
    input_tokens: int
    input_cached_tokens: int
    output_tokens: int
    num_model_requests: int
    cost: Amount


class Completion(Shape):
    """OpenAI's, with `seed` and `metrics.speculative_decoding`."""

    model_config = {"extra": "allow"}

    id: str
    object: str
    created: Unix
    model: str
    choices: list[Any]
