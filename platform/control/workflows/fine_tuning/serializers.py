"""OpenAI's fine-tuning job, event and checkpoint. What it has no words for stands in `turbo`."""

from collections.abc import Mapping
from typing import Any

from control.core.api.times import unix
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.schemas import Progress
from control.workflows.batches.models import Batch
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.selectors import CHECKPOINT, PAUSED_ON_REQUEST, work_of
from control.workflows.pipelines.models import Pipeline, PipelineEvent

Status = Pipeline.Status

_ENDED = {
    Status.LIVE: "succeeded",
    Status.SUCCEEDED: "succeeded",
    Status.REJECTED: "failed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
}
_MESSAGES = {
    Status.DISTILLING: "The model answers the prompts",
    Status.TRAINING: "The speculator is trained on the model's own answers",
    Status.EVALUATING: "Held-out prompts are answered with and without the speculator",
    Status.GATING: "The report is compared with what was asked for",
    Status.DEPLOYING: "The endpoint starts",
    Status.LIVE: "The job has succeeded, and its endpoint is live",
    Status.SUCCEEDED: "The job has succeeded",
    Status.REJECTED: "The speculator does not do what was asked for",
    Status.FAILED: "The job has failed",
    Status.CANCELLED: "The job has been cancelled",
}
_LEVELS = {Status.FAILED: "error", Status.REJECTED: "error", Status.CANCELLED: "warn"}
_TOLD = {"cancel_requested": "The job is being cancelled", "paused": "The job waits", "resumed": "The job goes on"}
_METRICS = {"loss": "train_loss", "validation_loss": "valid_loss"}  # ours: OpenAI's


def fine_tuning_job_body(job: FineTuningJob) -> dict[str, Any]:
    """`job` comes from `fine_tuning_jobs_list`, which brings all that is read here."""
    pipeline = job.pipeline
    status = status_of(pipeline)
    is_done = status == "succeeded"
    return {
        "object": "fine_tuning.job",
        "id": job.pk,
        "model": pipeline.base_model.name,
        "created_at": unix(job.created_at),
        "finished_at": unix(pipeline.finished_at),
        "fine_tuned_model": pipeline.name if is_done else None,
        "organization_id": job.organization_id,
        "result_files": _result_files(pipeline) if is_done else [],
        "status": status,
        "validation_file": job.validation_file_id,
        "training_file": job.training_file_id,
        "hyperparameters": job.hyperparameters,
        "trained_tokens": pipeline.batch.usage.get("output_tokens") if is_done and pipeline.batch else None,
        "integrations": [],
        "seed": pipeline.training.get("seed", 0),
        "estimated_finish": None,
        "error": _error(pipeline),
        "metadata": job.metadata,
        "method": {"type": "supervised", "supervised": {"hyperparameters": job.hyperparameters}},
        "turbo": _turbo(job),
    }


def status_of(pipeline: Pipeline) -> str:
    """In OpenAI's words."""
    if ended := _ENDED.get(Status(pipeline.status)):
        return ended
    work, batch = work_of(pipeline), pipeline.batch
    if work is not None and work.status == Job.Status.PAUSED:
        return "paused"
    if pipeline.status != Status.DISTILLING or batch is None:
        return "running"
    if batch.job.status == Job.Status.QUEUED and batch.job.started_at is None:
        return "queued"
    return "validating_files" if batch.status == Batch.Status.VALIDATING else "running"


def _result_files(pipeline: Pipeline) -> list[str]:
    """What the model answered, on which the speculator was trained."""
    file_id = pipeline.batch.output_file_id if pipeline.batch else None
    return [file_id] if file_id else []


def _error(pipeline: Pipeline) -> dict[str, Any] | None:
    if status_of(pipeline) != "failed":
        return None
    error = pipeline.error or {}
    return {"code": error.get("code", "failed"), "message": error.get("message", "The job failed."), "param": None}


def _turbo(job: FineTuningJob) -> dict[str, Any]:
    pipeline = job.pipeline
    now = work_of(pipeline)
    last = pipeline.evaluation_job or pipeline.training_job or (pipeline.batch.job if pipeline.batch else None)
    hyperparameters = {name: value for name, value in pipeline.training.items() if name not in ("kind", "seed")}
    return {
        "state": pipeline.status,
        "pipeline_id": pipeline.pk,
        "speculator_id": pipeline.speculator_id,
        "deployment_id": pipeline.deployment_id,
        "kind": pipeline.training["kind"],
        "hyperparameters": hyperparameters,
        "progress": None if last is None or (progress := Progress.of(last)) is None else progress.as_json(),
        "waiting_for": _waiting_for(now, has_worker=job.has_worker) if now else None,
        "paused": now.paused if now else None,
        "report": pipeline.speculator.report if pipeline.speculator else None,
    }


def _waiting_for(work: Job, *, has_worker: bool) -> str | None:
    if work.paused is not None:
        return "resume" if work.paused["code"] == PAUSED_ON_REQUEST else "spend_cap"
    if work.status != Job.Status.QUEUED:
        return None
    return "turn" if has_worker else "worker"


def events_body(
    job: FineTuningJob, moves: list[PipelineEvent], work: list[JobEvent]
) -> list[dict[str, Any]]:
    """Newest first."""
    events = [(move.created_at, _move_body(job.pipeline, move)) for move in moves]
    events += [(event.created_at, _work_body(event)) for event in work]
    return [body for _, body in sorted(events, key=lambda item: item[0], reverse=True)]


def _move_body(pipeline: Pipeline, move: PipelineEvent) -> dict[str, Any]:
    status = Status(move.status)
    message = _MESSAGES[status]
    if status in (Status.FAILED, Status.REJECTED) and pipeline.error:
        message = f"{message}: {pipeline.error.get('message', '')}"
    return _event(f"p{move.pk}", move.created_at, _LEVELS.get(status, "info"), message, {"state": status.value})


def _work_body(event: JobEvent) -> dict[str, Any]:
    if event.type == CHECKPOINT:
        metrics = metrics_body(event.data)
        return _event(f"j{event.pk}", event.created_at, "info", f"Step {metrics['step']}", metrics, kind="metrics")
    if event.type == "retried":
        message = f"An attempt failed and is repeated: {event.data.get('message', '')}"
        return _event(f"j{event.pk}", event.created_at, "warn", message, {"code": event.data.get("code")})
    message = _TOLD[event.type]
    if event.type == "paused":
        message = f"{message}: {event.data.get('message', '')}"
    return _event(f"j{event.pk}", event.created_at, "warn", message, {"code": event.data.get("code")})


def _event(
    number: str, created_at: Any, level: str, message: str, data: Mapping[str, Any], *, kind: str = "message"
) -> dict[str, Any]:
    return {
        "object": "fine_tuning.job.event",
        "id": f"ftevent-{number}",
        "created_at": unix(created_at),
        "level": level,
        "message": message,
        "type": kind,
        "data": dict(data),
    }


def metrics_body(data: Mapping[str, Any]) -> dict[str, Any]:
    """Of a committed checkpoint: OpenAI's names where there are any, and ours."""
    metrics = data.get("metrics") or {}
    return {"step": data["step"], **{_METRICS.get(name, name): value for name, value in metrics.items()}}


def checkpoint_body(job: FineTuningJob, event: JobEvent) -> dict[str, Any]:
    step = event.data["step"]
    return {
        "object": "fine_tuning.job.checkpoint",
        "id": f"ftckpt_{event.pk}",
        "created_at": unix(event.created_at),
        "fine_tuned_model_checkpoint": f"{job.pipeline.name}:ckpt-step-{step}",
        "fine_tuning_job_id": job.pk,
        "metrics": metrics_body(event.data),
        "step_number": step,
    }
