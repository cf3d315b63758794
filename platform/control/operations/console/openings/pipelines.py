"""The opening of a pipeline's page: what happens now and next, the stages as a line, and the cost so far."""

import time
from dataclasses import dataclass

from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from control.billing.ledger.selectors import job_time_nanousd
from control.operations.console.rendering import duration, usd, why_not_running
from control.queue.jobs.models import Job
from control.queue.jobs.positions import queue_positions_set
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.schemas import Gate, StageObject
from control.workflows.pipelines.state import ACTIVE, STAGES, Status

_TITLES = {
    Status.DISTILLING: "Answer the prompts",
    Status.TRAINING: "Train",
    Status.EVALUATING: "Evaluate",
    Status.GATING: "Check the gate",
    Status.DEPLOYING: "Deploy",
}
_ENDS = {
    Status.LIVE: "It is live: the deployment serves the model together with the speculator.",
    Status.SUCCEEDED: "It has succeeded: the speculator passed the gate. No deployment was requested.",
    Status.REJECTED: "It is rejected: the speculator did not pass the gate, so it is not deployed.",
    Status.FAILED: "It has failed. Resume restarts the stage that failed; the results of earlier stages are kept.",
    Status.CANCELLED: "It was cancelled. Resume restarts the stage that was cancelled.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    title: str
    status: str
    time: str  # how long the stage took or has taken; empty if it has not begun
    progress: str
    note: str  # why the stage waits, or how long it will take; may be empty


def pipeline_opening(pipeline: Pipeline) -> SafeString:
    """Args: pipeline: a row of `pipeline_fresh`."""
    jobs = _jobs(pipeline)
    queue_positions_set([job for job in jobs.values() if job.status == Job.Status.QUEUED])
    stages = zip(STAGES, StageObject.all_of(pipeline), strict=True)
    tokens = 0 if pipeline.batch is None else pipeline.batch.cost_nanousd
    device_time = job_time_nanousd(pipeline.organization, [job.pk for job in jobs.values()])
    context = {
        "row": pipeline,
        "is_active": pipeline.status in ACTIVE,
        "now": _ENDS.get(Status(pipeline.status)),
        "next": _next(pipeline),
        "steps": [_step(status, stage, jobs.get(status)) for status, stage in stages],
        "cost": {"all": usd(tokens + device_time), "tokens": usd(tokens), "device_time": usd(device_time)},
    }
    return render_to_string("console/openings/pipeline.html", context)


def _jobs(pipeline: Pipeline) -> dict[Status, Job]:
    jobs = {
        Status.DISTILLING: None if pipeline.batch is None else pipeline.batch.job,
        Status.TRAINING: pipeline.training_job,
        Status.EVALUATING: pipeline.evaluation_job,
    }
    return {status: job for status, job in jobs.items() if job is not None}


def _step(status: Status, stage: StageObject, job: Job | None) -> _Step:
    since, until = stage.started_at, stage.finished_at
    if until is None and stage.status == "running":
        until = int(time.time())
    count, note = stage.progress, ""
    if stage.status == "running" and job is not None:
        note = _note(job)
    return _Step(
        title=_TITLES[status],
        status=stage.status,
        time="" if since is None or until is None else duration(max(0, until - since)),
        progress=f"{count.done:,} / {count.total:,} {count.unit}" if count is not None and count.total else "",
        note=note,
    )


def _note(job: Job) -> str:
    seconds = job.metrics.get("eta_seconds")
    return why_not_running(job) or ("" if seconds is None else f"About {duration(seconds)} left")


def _next(pipeline: Pipeline) -> str:
    """Says what the pipeline does after its present stage; empty if the pipeline has ended."""
    if pipeline.status in (Status.DEPLOYING, *_ENDS):
        return "The pipeline is live as soon as the deployment is ready." if pipeline.status == Status.DEPLOYING else ""
    gate = Gate.model_validate(pipeline.gate)
    over = "suffix decoding" if gate.baseline == "suffix" else "plain decoding"
    passed = "the speculator is deployed" if pipeline.deploy else "the pipeline has succeeded, without a deployment"
    return {
        Status.DISTILLING: "A speculator is trained on the answers.",
        Status.TRAINING: "The speculator is measured on prompts that were held out from the training.",
        Status.EVALUATING: f"The gate requires {gate.min_speedup:g}× the speed of {over}; if it is passed, {passed}.",
        Status.GATING: f"If the gate is passed, {passed}.",
    }[Status(pipeline.status)]
