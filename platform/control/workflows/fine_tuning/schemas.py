"""Requests and responses of fine-tuning: OpenAI's job, with our additions in `turbo`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SkipValidation, WithJsonSchema

from control.billing.usage.schemas import Amount
from control.core.api.errors import ApiError
from control.core.api.metadata import Metadata
from control.core.api.requests import parse_request
from control.core.api.schemas import Figures, IntRange, OneOf, RequestModel, ResponseModel, Text, Unix
from control.models.adapters.lora import MAX_RANK
from control.models.engines.schemas import Hardware, ValidateOnly
from control.queue.jobs.models import Job
from control.queue.jobs.schemas import Paused, Progress
from control.workflows.batches.models import Batch
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.selectors import PAUSED_ON_REQUEST, stage_job
from control.workflows.pipelines.models import Pipeline
from control.workflows.prompt_files.contamination import OnContamination
from control.workflows.prompt_files.schemas import OnSensitiveOption
from workers.hyperparameters.lora import LONG_ROWS
from workers.kinds import LORA, REQUESTED_KINDS

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


def _refuse_integrations(integrations: list[Any] | None) -> list[Any] | None:
    if integrations:
        raise ValueError("integrations are not supported yet; use the job's events")
    return integrations


def _refuse_others(given: Mapping[str, Any], known: Sequence[str], under: str) -> None:
    """Refuses options such as `hardware`, which the training of an adapter does not have. Raises: ApiError: 400."""
    other = next((name for name, value in given.items() if name not in known and value is not None), None)
    if other is not None:
        param = f"{under}.{other[:80]}"
        message = f"Unknown parameter: {param}. {under} has {', '.join(known)}."
        raise ApiError(400, message, "unknown_parameter", param)


class Hyperparameters(RequestModel, strict=True):
    """`batch_size` must be `auto`, because the batch size depends on the kind of speculator."""

    n_epochs: Literal["auto"] | Annotated[int, Field(ge=1, le=50)] = "auto"
    batch_size: Literal["auto"] = "auto"
    learning_rate_multiplier: Literal["auto"] | Annotated[float, Field(gt=0, le=100)] = "auto"


class LabelHyperparameters(Hyperparameters, strict=True):
    """OpenAI's hyperparameters, and those of the LoRA adapter that learns the labels."""

    batch_size: Literal["auto"] | Annotated[int, Field(ge=1, le=256)] = "auto"  # type: ignore[assignment]
    lora_rank: Annotated[int, Field(ge=1, le=MAX_RANK)] | None = None
    lora_alpha: Annotated[int, Field(ge=1, le=4096)] | None = None
    max_row_tokens: Annotated[int, Field(ge=16, le=1 << 20)] | None = None
    long_rows: Annotated[str, OneOf(LONG_ROWS)] | None = None
    packing: bool | None = None


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
    hardware: Hardware = None


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
    validate_only: ValidateOnly = False

    @property
    def learns_labels(self) -> bool:
        """Whether an adapter learns the answers of the file: `method` is given, and without `turbo`."""
        return self.method is not None and self.turbo is None and self.method.get("turbo") is None

    def label_hyperparameters(self) -> LabelHyperparameters:
        """The hyperparameters of `method`. Raises: ApiError: 400, also for an option that would have no effect."""
        values, param = self._of_supervised()
        assert self.method is not None, "the caller has checked it"
        _refuse_others(self.method, ("type", "supervised", "turbo"), "method")
        _refuse_others(self.method.get("supervised") or {}, ("hyperparameters",), "method.supervised")
        if self.hyperparameters:
            message = f"hyperparameters cannot be given together with method; give {param}"
            raise ApiError(400, message, "invalid_value", "hyperparameters")
        return parse_request(LabelHyperparameters, values, under=param)

    def check_plannable(self) -> None:
        """Raises: ApiError: 400, `validate_only` is given for the training of a speculator."""
        if not self.learns_labels:
            message = "validate_only is for jobs with method and without turbo; POST /v1/pipelines plans the others."
            raise ApiError(400, message, "invalid_value", "validate_only")

    def chosen_hyperparameters(self) -> Hyperparameters:
        """The hyperparameters of `method`, or else the top-level `hyperparameters`. Raises: ApiError: 400."""
        if self.method is None:
            return parse_request(Hyperparameters, self.hyperparameters or {}, under="hyperparameters")
        values, param = self._of_supervised()
        return parse_request(Hyperparameters, values, under=param)

    def _of_supervised(self) -> tuple[dict[str, Any], str]:
        assert self.method is not None, "the caller has checked it"
        if (kind := self.method.get("type", "supervised")) != "supervised":
            raise ApiError(400, f"method.type must be 'supervised', got {kind!a:.60}", "invalid_value", "method.type")
        supervised = self.method.get("supervised") or {}
        if not isinstance(supervised, dict):
            raise ApiError(400, "method.supervised must be an object", "invalid_value", "method.supervised")
        return supervised.get("hyperparameters") or {}, "method.supervised.hyperparameters"

    def chosen_turbo(self) -> TurboInput:
        """The top-level `turbo`, or else `method.turbo`. Raises: ApiError: 400."""
        turbo = self.turbo
        if turbo is None and self.method is not None:
            turbo = self.method.get("turbo")
        return parse_request(TurboInput, turbo or {}, under="turbo")


_WaitingFor = Literal["worker", "turn", "resume", "spend_cap"]


class FineTuningError(ResponseModel):
    code: SkipValidation[str]
    message: SkipValidation[str]
    param: str | None

    @classmethod
    def of(cls, error: Mapping[str, Any]) -> Self:
        return cls(code=error.get("code", "failed"), message=error.get("message", "The job failed."), param=None)


class Turbo(ResponseModel):
    """Our additions to OpenAI's object."""

    state: str
    pipeline_id: str | None = Field(description="Null if the job trains an adapter on labels.")
    speculator_id: str | None
    deployment_id: str | None
    adapter_id: str | None = Field(description="The adapter that the job has trained on labels.")
    kind: SkipValidation[str] = Field(description="The kind of speculator, or `lora`.")
    hyperparameters: SkipValidation[Figures]
    hardware: str | None = Field(description="The requested device. Null means any device.")
    progress: Figures | None
    waiting_for: _WaitingFor | None = Field(
        description=(
            "Why the job does not run. `worker`: no worker is running. `turn`: other jobs come first. `resume`: the "
            "job is paused until it is resumed. `spend_cap`: the job is paused by a cap."
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
        if pipeline is None:
            return cls._of_adapter(job)
        current_job = stage_job(pipeline)
        latest_job = pipeline.evaluation_job or pipeline.training_job
        latest_job = latest_job or (pipeline.batch.job if pipeline.batch else None)
        progress = Progress.of(latest_job) if latest_job else None
        tokens = pipeline.batch.cost_nanousd if pipeline.batch else 0
        return cls.from_row(
            pipeline,
            state=pipeline.status,
            pipeline_id=pipeline.pk,
            adapter_id=None,
            kind=pipeline.training.get("kind"),
            hyperparameters={name: value for name, value in pipeline.training.items() if name not in ("kind", "seed")},
            hardware=pipeline.hardware or None,
            progress=None if progress is None else progress.as_json(),
            waiting_for=_waiting_for(current_job, has_worker=job.has_worker) if current_job else None,
            paused=current_job.paused if current_job else None,
            cost=Amount.of(tokens + job.device_nanousd),
            report=pipeline.speculator.report if pipeline.speculator else None,
        )

    @classmethod
    def _of_adapter(cls, job: Any) -> Self:
        running = job.job
        progress = Progress.of(running)
        return cls(
            state=running.status,
            pipeline_id=None,
            speculator_id=None,
            deployment_id=None,
            adapter_id=job.adapter_id,
            kind=LORA,
            hyperparameters=running.params.get("hyperparameters", {}),
            hardware=running.hardware or None,
            progress=None if progress is None else progress.as_json(),
            waiting_for=_waiting_for(running, has_worker=job.has_worker),
            paused=running.paused,
            cost=Amount.of(job.device_nanousd),
            report=running.result or None,
        )


def _waiting_for(current_job: Job, *, has_worker: bool) -> _WaitingFor | None:
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
        if job.pipeline is None:
            return cls._of_adapter(job)
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
            error=FineTuningError.of(pipeline.error or {}) if status == "failed" else None,
            method={"type": "supervised", "supervised": {"hyperparameters": job.hyperparameters}},
            turbo=Turbo.of(job),
        )

    @classmethod
    def _of_adapter(cls, job: FineTuningJob) -> Self:
        running, base_model = job.job, job.base_model
        assert running is not None and base_model is not None, "a job without a pipeline has both"  # noqa: PT018
        is_done = running.status == Job.Status.SUCCEEDED
        return cls.from_row(
            job,
            model=base_model.name,
            finished_at=running.finished_at,
            fine_tuned_model=job.name if is_done else None,
            result_files=[],
            status=running.status,
            validation_file=job.validation_file_id,
            training_file=job.training_file_id,
            trained_tokens=running.result.get("trained_tokens") if is_done else None,
            integrations=[],
            estimated_finish=None,
            error=FineTuningError.of(running.error or {}) if running.status == Job.Status.FAILED else None,
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
