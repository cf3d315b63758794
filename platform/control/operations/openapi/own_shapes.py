"""Our own objects as we answer them."""

from typing import Any, Literal

from pydantic import Field

from control.billing.usage.schemas import Amount
from control.core.api.schemas import Failure
from control.operations.openapi.shapes import Figures, Shape, Unix
from control.queue.jobs.schemas import Paused, Progress


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


class Completion(Shape):
    """OpenAI's, with `seed` and `metrics.speculative_decoding`."""

    model_config = {"extra": "allow"}

    id: str
    object: str
    created: Unix
    model: str
    choices: list[Any]
