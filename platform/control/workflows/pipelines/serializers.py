"""Pipelines as the API shows them: one object with its stages."""

from typing import Any

from control.billing.usage.schemas import Amount
from control.core.api.times import unix
from control.queue.jobs.models import Job
from control.queue.jobs.schemas import Progress
from control.workflows.pipelines.models import Pipeline, PipelineEvent
from control.workflows.pipelines.state import ACTIVE, STAGES, Status

_ENDINGS = {Status.FAILED: "failed", Status.REJECTED: "failed", Status.CANCELLED: "cancelled"}


def pipeline_json(pipeline: Pipeline) -> dict[str, Any]:
    """`pipeline` comes from `pipelines_list`, which brings all that is read here."""
    evaluation = pipeline.evaluation_job
    report = evaluation.result if evaluation is not None and evaluation.status == Job.Status.SUCCEEDED else None
    return {
        "id": pipeline.pk,
        "object": "pipeline",
        "name": pipeline.name,
        "model": pipeline.base_model.name,
        "status": pipeline.status,
        "prompts_file": pipeline.prompts_file_id,
        "held_out_file": pipeline.held_out_file_id,
        "training": pipeline.training,
        "evaluation": pipeline.evaluation,
        "gate": pipeline.gate,
        "deploy": pipeline.deploy,
        "stages": _stages(pipeline),
        "batch_id": pipeline.batch_id,
        "speculator_id": pipeline.speculator_id,
        "deployment_id": pipeline.deployment_id,
        "quote_id": pipeline.quote_id,
        "cost": Amount.of(0 if pipeline.batch is None else pipeline.batch.cost_nanousd).as_json(),
        "report": report,
        "error": pipeline.error,
        "created_at": unix(pipeline.created_at),
        "finished_at": unix(pipeline.finished_at),
    }


def _stages(pipeline: Pipeline) -> list[dict[str, Any]]:
    events = list(pipeline.events.all())
    jobs = {
        Status.DISTILLING: pipeline.batch.job if pipeline.batch is not None else None,
        Status.TRAINING: pipeline.training_job,
        Status.EVALUATING: pipeline.evaluation_job,
    }
    return [_stage(pipeline, status, jobs.get(status), events) for status in STAGES]


def _stage(pipeline: Pipeline, status: Status, job: Job | None, events: list[PipelineEvent]) -> dict[str, Any]:
    """A stage's time runs from the last move into it to the move after that."""
    entered = next((i for i in reversed(range(len(events))) if events[i].status == status), None)
    left = None if entered is None or entered + 1 == len(events) else events[entered + 1]
    return {
        "name": STAGES[status],
        "status": _stage_status(pipeline, entered is not None, left, status),
        "job_id": None if job is None else job.pk,
        "paused": None if job is None else job.paused,
        "progress": None if job is None or (progress := Progress.of(job)) is None else progress.as_json(),
        "metrics": {} if job is None else job.metrics,
        "started_at": None if entered is None else unix(events[entered].created_at),
        "finished_at": None if left is None else unix(left.created_at),
    }


def _stage_status(pipeline: Pipeline, was_entered: bool, left: PipelineEvent | None, status: Status) -> str:
    if was_entered and left is None:
        return "running"
    if was_entered and left is not None:
        return _ENDINGS.get(Status(left.status), "succeeded")
    if status == Status.DISTILLING:  # all others begin with it
        return "skipped"
    is_over = pipeline.status not in ACTIVE and pipeline.status not in (Status.FAILED, Status.CANCELLED)
    return "skipped" if is_over or (status == Status.DEPLOYING and not pipeline.deploy) else "pending"
