"""OpenAI's objects as we answer them; what is ours in them says so."""

from typing import Any, Literal

from pydantic import Field

from control.operations.openapi.shapes import Figures, Shape, Unix
from control.queue.jobs.schemas import Paused


class FineTuningError(Shape):
    code: str
    message: str
    param: str | None


class Turbo(Shape):
    """Ours: what OpenAI's object has no words for."""

    state: str
    pipeline_id: str
    speculator_id: str | None
    deployment_id: str | None
    kind: str
    hyperparameters: Figures
    progress: Figures | None
    waiting_for: Literal["worker", "turn", "resume", "spend_cap"] | None = Field(
        description="Why nothing happens: no worker is alive, others are before it, or it is paused."
    )
    paused: Paused | None
    report: Figures | None


class FineTuningJobObject(Shape):
    object: Literal["fine_tuning.job"]
    id: str
    model: str
    created_at: Unix
    finished_at: Unix | None
    fine_tuned_model: str | None
    organization_id: str
    result_files: list[str]
    status: Literal["validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"]
    validation_file: str | None
    training_file: str
    hyperparameters: Figures
    trained_tokens: int | None
    integrations: list[Any]
    seed: int
    estimated_finish: Unix | None
    error: FineTuningError | None
    metadata: dict[str, str]
    method: Figures
    turbo: Turbo


class FineTuningEventObject(Shape):
    object: Literal["fine_tuning.job.event"]
    id: str
    created_at: Unix
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: Figures


class FineTuningCheckpointObject(Shape):
    object: Literal["fine_tuning.job.checkpoint"]
    id: str
    created_at: Unix
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: Figures
    step_number: int
