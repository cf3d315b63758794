"""Requests and responses of fine-tuning: OpenAI's job, event and checkpoint, with our additions in `turbo`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SkipValidation, WithJsonSchema

from control.billing.usage.schemas import Amount
from control.core.api.errors import ApiError
from control.core.api.metadata import Metadata
from control.core.api.requests import parse_request
from control.core.api.schemas import Figures, IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.schemas import Paused, Progress
from control.workflows.batches.models import Batch
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.selectors import CHECKPOINT, PAUSED_ON_REQUEST, stage_job
from control.workflows.pipelines.models import Pipeline, PipelineEvent
from control.workflows.prompt_files.contamination import OnContamination
from control.workflows.prompt_files.schemas import OnSensitiveOption
from workers.kinds import REQUESTED_KINDS

Status = Pipeline.Status

MAX_SUFFIX = 64
MAX_SEED = (1 << 31) - 1
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
}
_METRICS = {"loss": "train_loss", "validation_loss": "valid_loss"}  # maps our names to OpenAI's names


def _refuse_integrations(integrations: list[Any] | None) -> list[Any] | None:
    if integrations:
        raise ValueError("integrations are not supported yet; use the job's events")
    return integrations


class Hyperparameters(RequestModel, strict=True):
    """`batch_size` must be `auto`, because the batch size depends on the kind of speculator."""

    n_epochs: Literal["auto"] | Annotated[int, Field(ge=1, le=50)] = "auto"
    batch_size: Literal["auto"] = "auto"
    learning_rate_multiplier: Literal["auto"] | Annotated[float, Field(gt=0, le=100)] = "auto"


class TurboInput(RequestModel, strict=True):
    """Parameters of a pipeline that OpenAI's request does not have."""

    kind: Annotated[str, OneOf(REQUESTED_KINDS)] = "medusa"
    hyperparameters: dict[str, Any] = {}
    held_out: Annotated[int, Field(ge=1)] | None = None
    answers: Annotated[str, OneOf(Pipeline.Answers)] = Pipeline.Answers.MODEL.value
    on_contamination: Annotated[str, OneOf(OnContamination)] = OnContamination.WARN.value
    on_sensitive: OnSensitiveOption = None
    evaluation: dict[str, Any] = {}
    gate: dict[str, Any] = {"min_speedup": 0.0}  # by default no speedup is required, only equal outputs
    deploy: bool = False


_Object = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": {}})]


class JobInput(RequestModel):
    model: Annotated[str, Text(120)]
    training_file: Annotated[str, Text(80)]
    validation_file: Annotated[str, Text(80)] | None = None
    suffix: Annotated[str, Text(MAX_SUFFIX, pattern=r"^[A-Za-z0-9._-]*$")] | None = None
    seed: Annotated[int, IntRange(0, MAX_SEED)] | None = None
    hyperparameters: _Object | None = None  # OpenAI's older name of `method.supervised.hyperparameters`
    method: _Object | None = None
    integrations: Annotated[list[Any] | None, AfterValidator(_refuse_integrations)] = None
    turbo: _Object | None = None
    metadata: Metadata | None = None

    def chosen_hyperparameters(self) -> Hyperparameters:
        """The hyperparameters of `method`, or else the top-level `hyperparameters`. Raises: ApiError: 400."""
        if self.method is None:
            return parse_request(Hyperparameters, self.hyperparameters or {}, under="hyperparameters")
        if (kind := self.method.get("type", "supervised")) != "supervised":
            raise ApiError(400, f"method.type must be 'supervised', got {kind!a:.60}", "invalid_value", "method.type")
        supervised = self.method.get("supervised") or {}
        if not isinstance(supervised, dict):
            raise ApiError(400, "method.supervised must be an object", "invalid_value", "method.supervised")
        param = "method.supervised.hyperparameters"
        return parse_request(Hyperparameters, supervised.get("hyperparameters") or {}, under=param)

    def chosen_turbo(self) -> TurboInput:
        """The top-level `turbo`, or else `method.turbo`. Raises: ApiError: 400."""
        turbo = self.turbo
        if turbo is None and self.method is not None:
            turbo = self.method.get("turbo")
        return parse_request(TurboInput, turbo or {}, under="turbo")


class FineTuningError(ResponseModel):
    code: SkipValidation[str]
    message: SkipValidation[str]
    param: str | None

    @classmethod
    def of(cls, pipeline: Pipeline) -> Self:
        error = pipeline.error or {}
        return cls(code=error.get("code", "failed"), message=error.get("message", "The job failed."), param=None)


class Turbo(ResponseModel):
    """Our additions to OpenAI's object."""

    state: str
    pipeline_id: str
    speculator_id: str | None
    deployment_id: str | None
    kind: SkipValidation[str]
    hyperparameters: SkipValidation[Figures]
    progress: Figures | None
    waiting_for: Literal["worker", "turn", "resume", "spend_cap"] | None = Field(
        description=(
            "Why the job does not run. `worker`: no worker is alive; `turn`: other jobs are before it; "
            "`resume`, `spend_cap`: it is paused until it is resumed or the cap is lifted."
        )
    )
    paused: SkipValidation[Paused | None]
    report: SkipValidation[Figures | None]
    cost: Amount = Field(
        description="The cost so far: the tokens of the answers, and the device time of the attempts that have ended."
    )

    @classmethod
    def of(cls, job: Any) -> Self:
        """Args: job: a row of `fine_tuning_jobs_list`."""
        pipeline = job.pipeline
        current_job = stage_job(pipeline)
        latest_job = pipeline.evaluation_job or pipeline.training_job
        latest_job = latest_job or (pipeline.batch.job if pipeline.batch else None)
        progress = Progress.of(latest_job) if latest_job else None
        tokens = pipeline.batch.cost_nanousd if pipeline.batch else 0
        return cls.from_row(
            pipeline,
            state=pipeline.status,
            pipeline_id=pipeline.pk,
            kind=pipeline.training.get("kind"),
            hyperparameters={name: value for name, value in pipeline.training.items() if name not in ("kind", "seed")},
            progress=None if progress is None else progress.as_json(),
            waiting_for=_waiting_for(current_job, has_worker=job.has_worker) if current_job else None,
            paused=current_job.paused if current_job else None,
            cost=Amount.of(tokens + job.device_nanousd),
            report=pipeline.speculator.report if pipeline.speculator else None,
        )


def _waiting_for(current_job: Job, *, has_worker: bool) -> str | None:
    if current_job.paused is not None:
        return "resume" if current_job.paused.get("code") == PAUSED_ON_REQUEST else "spend_cap"
    if current_job.status != Job.Status.QUEUED:
        return None
    return "turn" if has_worker else "worker"


class FineTuningJobObject(ResponseModel):
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
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
    hyperparameters: SkipValidation[Figures]
    trained_tokens: SkipValidation[int | None]
    integrations: list[Any]
    seed: SkipValidation[int]
    estimated_finish: Unix | None
    error: FineTuningError | None
    metadata: SkipValidation[dict[str, str]]
    method: SkipValidation[Figures]
    turbo: Turbo

    @classmethod
    def of(cls, job: FineTuningJob) -> Self:
        """`job` comes from `fine_tuning_jobs_list`, which selects the related rows."""
        pipeline, batch = job.pipeline, job.pipeline.batch
        status = _status_of(pipeline)
        is_done = status == "succeeded"
        return cls.from_row(
            job,
            model=pipeline.base_model.name,
            finished_at=pipeline.finished_at,
            fine_tuned_model=pipeline.name if is_done else None,
            # the model's answers, which the speculator was trained on
            result_files=[batch.output_file_id] if is_done and batch and batch.output_file_id else [],
            status=status,
            validation_file=job.validation_file_id,
            training_file=job.training_file_id,
            trained_tokens=batch.usage.get("output_tokens") if is_done and batch else None,
            integrations=[],
            seed=pipeline.training.get("seed", 0),
            estimated_finish=None,
            error=FineTuningError.of(pipeline) if status == "failed" else None,
            method={"type": "supervised", "supervised": {"hyperparameters": job.hyperparameters}},
            turbo=Turbo.of(job),
        )


def _status_of(pipeline: Pipeline) -> str:
    """The job's status in OpenAI's API."""
    if ended := _ENDED.get(Status(pipeline.status)):
        return ended
    current_job, batch = stage_job(pipeline), pipeline.batch
    if current_job is not None and current_job.status == Job.Status.PAUSED:
        return "paused"
    if pipeline.status != Status.DISTILLING or batch is None:
        return "running"
    if batch.job.status == Job.Status.QUEUED and batch.job.started_at is None:
        return "queued"
    return "validating_files" if batch.status == Batch.Status.VALIDATING else "running"


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
        events = [(row.created_at, cls._of_transition(job.pipeline, row)) for row in transitions]
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
        if event.type in ("paused", "retried"):
            message = f"{message}: {event.data.get('message', '')}"
        data = {"code": event.data.get("code")}
        return cls.from_row(event, id=identity, level="warn", message=message, type="message", data=data)


def _metrics(data: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics of a committed checkpoint, under OpenAI's names where OpenAI has any."""
    metrics = data.get("metrics") or {}
    return {"step": data.get("step"), **{_METRICS.get(name, name): value for name, value in metrics.items()}}


class FineTuningCheckpointObject(ResponseModel):
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    id: str
    created_at: Unix
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    metrics: SkipValidation[Figures]
    step_number: SkipValidation[int]

    @classmethod
    def of(cls, job: FineTuningJob, event: JobEvent) -> Self:
        step = event.data.get("step")
        return cls.from_row(
            event,
            id=f"ftckpt_{event.pk}",
            fine_tuned_model_checkpoint=f"{job.pipeline.name}:ckpt-step-{step}",
            fine_tuning_job_id=job.pk,
            metrics=_metrics(event.data),
            step_number=step,
        )
