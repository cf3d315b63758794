"""Responses about what has happened in a fine-tuning job: OpenAI's events and checkpoints."""

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import Figures, RequestModel, ResponseModel, Text, Unix
from control.models.adapters.schemas import NAME_PATTERN
from control.queue.jobs.models import JobEvent
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.selectors import CHECKPOINT, CHECKPOINT_PREFIX
from control.workflows.pipelines.models import Pipeline, PipelineEvent

Status = Pipeline.Status

_MESSAGES = {
    Status.DISTILLING: "The model answers the prompts",
    Status.TRAINING: "The speculator is trained on the model's own answers",
    Status.EVALUATING: "Held-out prompts are answered with and without the speculator",
    Status.GATING: "The report is compared with the conditions of the gate",
    Status.DEPLOYING: "The endpoint starts",
    Status.LIVE: "The job has succeeded, and its endpoint is live",
    Status.SUCCEEDED: "The job has succeeded",
    Status.REJECTED: "The speculator does not meet the conditions of the gate",
    Status.FAILED: "The job has failed",
    Status.CANCELLED: "The job has been cancelled",
}
_LEVELS = {Status.FAILED: "error", Status.REJECTED: "error", Status.CANCELLED: "warn"}
_JOB_EVENT_MESSAGES = {
    "cancel_requested": "The job is being cancelled",
    "paused": "The job is paused",
    "resumed": "The job continues",
    "retried": "An attempt failed and is repeated",
    "queued": "The job is queued",
    "claimed": "The adapter is trained on the labels of the training file",
    "succeeded": "The job has succeeded",
    "failed": "The job has failed",
    "cancelled": "The job has been cancelled",
}
_JOB_EVENT_LEVELS = {"queued": "info", "claimed": "info", "succeeded": "info", "failed": "error"}
# Maps our names to OpenAI's names.
_METRICS = {
    "loss": "train_loss",
    "validation_loss": "valid_loss",
    "validation_accuracy": "valid_mean_token_accuracy",
}


class CheckpointAdapterInput(RequestModel):
    name: Annotated[str, Text(64, pattern=NAME_PATTERN)] | None = Field(
        default=None, description="The adapter's name; by default the checkpoint's `fine_tuned_model_checkpoint`."
    )


class FineTuningEventObject(ResponseModel):
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    id: str
    created_at: Unix
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: SkipValidation[Figures]

    @classmethod
    def all_of(cls, job: FineTuningJob, transitions: list[PipelineEvent], job_events: list[JobEvent]) -> list[Self]:
        """The pipeline's transitions and its jobs' events, newest first."""
        events: list[tuple[dt.datetime, Self]] = []
        if job.pipeline is not None:
            events += [(row.created_at, cls._of_transition(job.pipeline, row)) for row in transitions]
        events += [(event.created_at, cls._of_job_event(event)) for event in job_events]
        return [event for _, event in sorted(events, key=lambda item: item[0], reverse=True)]

    @classmethod
    def _of_transition(cls, pipeline: Pipeline, row: PipelineEvent) -> Self:
        status = Status(row.status)
        message = _MESSAGES[status]
        if status in (Status.FAILED, Status.REJECTED) and pipeline.error:
            message = f"{message}: {pipeline.error.get('message', '')}"
        return cls.from_row(
            row,
            id=f"ftevent-p{row.pk}",
            level=_LEVELS.get(status, "info"),
            message=message,
            type="message",
            data={"state": status.value},
        )

    @classmethod
    def _of_job_event(cls, event: JobEvent) -> Self:
        identity = f"ftevent-j{event.pk}"
        if event.type == CHECKPOINT:
            metrics = _metrics(event.data)
            message = f"Step {metrics['step']}"
            return cls.from_row(event, id=identity, level="info", message=message, type="metrics", data=metrics)
        message = _JOB_EVENT_MESSAGES[event.type]
        if event.type in ("paused", "retried", "failed"):
            message = f"{message}: {event.data.get('message', '')}"
        data = {"code": event.data.get("code")}
        level = _JOB_EVENT_LEVELS.get(event.type, "warn")
        return cls.from_row(event, id=identity, level=level, message=message, type="message", data=data)


def _metrics(data: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a committed checkpoint, under OpenAI's names where OpenAI has any."""
    metrics = data.get("metrics") or {}
    return {"step": data.get("step"), **{_METRICS.get(name, name): value for name, value in metrics.items()}}


def checkpoint_name(job: FineTuningJob, event: JobEvent) -> str:
    name = job.name if job.pipeline is None else job.pipeline.name
    return f"{name}:ckpt-step-{event.data.get('step')}"


class FineTuningCheckpointObject(ResponseModel):
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    id: str
    created_at: Unix
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: SkipValidation[Figures]
    step_number: SkipValidation[int]
    bytes: int | None = Field(
        description="Stored bytes of the checkpoint's adapter, which count towards the storage limit; 0 after its "
        "deletion. Null before the job has ended, and if no adapter can be created from the checkpoint."
    )

    @classmethod
    def of(cls, job: FineTuningJob, event: JobEvent) -> Self:
        step = event.data.get("step")
        return cls.from_row(
            event,
            id=f"{CHECKPOINT_PREFIX}{event.pk}",
            fine_tuned_model_checkpoint=checkpoint_name(job, event),
            fine_tuning_job_id=job.pk,
            metrics=_metrics(event.data),
            step_number=step,
            bytes=job.checkpoints.get(str(event.pk)),
        )
