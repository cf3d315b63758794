"""Requests and responses of pipelines and their stages."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.billing.usage.schemas import Amount
from control.core.api.schemas import Failure, Figures, OneOf, RequestModel, ResponseModel, Unix
from control.models.engines.schemas import MAX_FURTHER_ARMS, EngineOptions, EnginePlan, Hardware, ValidateOnly
from control.queue.jobs.models import Job
from control.queue.jobs.schemas import Paused, Progress
from control.workflows.distillations.schemas import DistillationOptions
from control.workflows.pipelines.models import Pipeline, PipelineEvent
from control.workflows.pipelines.state import ACTIVE, STAGES, Status
from control.workflows.prompt_files.contamination import OnContamination
from control.workflows.prompt_files.schemas import Contamination, OnSensitiveOption, Sensitive

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # the pipeline's deployment gets the same name
_STAGE_ENDS = {Status.FAILED: "failed", Status.REJECTED: "failed", Status.CANCELLED: "cancelled"}


class Training(RequestModel, strict=True, extra="allow"):
    """Other keys are hyperparameters of the kind."""

    kind: str = Field(
        default="medusa",
        description="The kind of the speculator. `auto` trains a speculator of each kind that is often the fastest, "
        "and keeps the one with which the model answers fastest.",
    )
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] = 0
    initial_speculator: str | None = None  # a speculator of the same kind and model, which training continues from


class Evaluation(RequestModel, strict=True):
    concurrencies: Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(min_length=1, max_length=8)] = [1]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=100_000)] | None = None  # USD; None: the installation's price
    compare_with: list[str] = Field(
        default=[],
        max_length=MAX_FURTHER_ARMS,
        description="Further arms of the evaluation: ids of speculators and base speculators for the same model, "
        "`suffix` or `ngram`.",
    )


class Gate(RequestModel, strict=True):
    min_speedup: Annotated[float, Field(ge=0)] = 1.0
    baseline: Literal["plain", "suffix"] = Field(
        default="plain",
        description="The decoding with which `min_speedup` compares the speculator: plain decoding, or suffix "
        "decoding, which needs no training.",
    )
    min_acceptance_length: Annotated[float, Field(ge=0)] | None = None
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = Field(
        default=None,
        description="The evaluated concurrency at which speedup and acceptance length are judged. Null means every "
        "evaluated concurrency.",
    )
    max_break_even_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="The maximum number of answer tokens after which the speculator has saved as much time as its "
        "creation took. It is judged at the same concurrency as the speedup. A speculator that saves no time does not "
        "pass.",
    )
    outputs_equal: bool | Literal["model", "model_and_adapter"] = Field(
        default=True,
        description="`model` or true: all answers must equal those of the requested model. `model_and_adapter`: all "
        "answers must equal those of the model with the speculator's own adapter, if its kind has an adapter. false: "
        "answers may differ.",
    )


class PipelineOptions(RequestModel, strict=True):
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    model: str
    prompts_file: str | None = None
    distillation_id: str | None = None  # a distillation whose answers are used; instead of prompts_file
    answers: Annotated[str, OneOf(Pipeline.Answers)] = Field(
        default=Pipeline.Answers.MODEL.value,
        description="Where the answers that training uses come from. `model`: the model answers the prompts. `file`: "
        "the rows of `prompts_file` have answers, which were made elsewhere; the pipeline starts with training.",
    )
    held_out_file: str | None = None
    held_out: Annotated[int, Field(ge=1)] | None = None  # number of prompts to hold out; only without held_out_file
    on_contamination: Annotated[str, OneOf(OnContamination)] = Field(
        default=OnContamination.WARN.value,
        description="What happens to training prompts that are exact or near duplicates of held-out prompts. `warn`: "
        "the pipeline counts them. `drop`: training leaves them out; only with `prompts_file`. `refuse`: the request "
        "is refused.",
    )
    on_sensitive: OnSensitiveOption = None
    distillation: DistillationOptions | None = None  # only with prompts_file
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    gate: Gate = Gate()
    deploy: bool = True
    quote_id: str | None = None  # the quote whose cap pauses the pipeline
    engine: EngineOptions | None = Field(
        default=None,
        description="Options of the engines that evaluate and serve the speculator. Options that determine answers "
        "also apply to the distillation.",
    )
    hardware: Hardware = None


class PipelineRequest(PipelineOptions):
    validate_only: ValidateOnly = False


class PipelinePlan(ResponseModel):
    """The engines of the stages. A member is null if the pipeline skips the stage."""

    object: Literal["pipeline.plan"] = "pipeline.plan"
    distillation: EnginePlan | None
    evaluation: EnginePlan
    deployment: EnginePlan | None


class StageObject(ResponseModel):
    name: Annotated[str, OneOf(STAGES.values())]
    status: Literal["pending", "running", "succeeded", "failed", "cancelled", "skipped"]
    job_id: str | None
    paused: SkipValidation[Paused | None]
    progress: Progress | None
    metrics: SkipValidation[Figures]
    started_at: Unix | None
    finished_at: Unix | None

    @classmethod
    def all_of(cls, pipeline: Pipeline) -> list[Self]:
        events = list(pipeline.events.all())
        jobs = {
            Status.DISTILLING: None if pipeline.batch is None else pipeline.batch.job,
            Status.TRAINING: pipeline.training_job,
            Status.EVALUATING: pipeline.evaluation_job,
        }
        return [cls._of(pipeline, status, jobs.get(status), events) for status in STAGES]

    @classmethod
    def _of(cls, pipeline: Pipeline, status: Status, job: Job | None, events: list[PipelineEvent]) -> Self:
        """A stage starts with the last transition to `status` and ends with the transition after that one."""
        start = next((i for i in reversed(range(len(events))) if events[i].status == status), None)
        end = None if start is None or start + 1 == len(events) else events[start + 1]
        return cls.from_row(
            job,
            name=STAGES[status],
            status=_stage_status(pipeline, start is not None, end, status),
            job_id=None if job is None else job.pk,
            paused=None if job is None else job.paused,
            progress=None if job is None else Progress.of(job),
            metrics={} if job is None else job.metrics,
            started_at=None if start is None else events[start].created_at,
            finished_at=None if end is None else end.created_at,
        )


def _stage_status(pipeline: Pipeline, has_started: bool, end: PipelineEvent | None, status: Status) -> str:
    if has_started and end is None:
        return "running"
    if has_started and end is not None:
        return _STAGE_ENDS.get(Status(end.status), "succeeded")
    if status == Status.DISTILLING:  # the pipeline began with the answers of a distillation
        return "skipped"
    is_over = pipeline.status not in ACTIVE and pipeline.status not in (Status.FAILED, Status.CANCELLED)
    return "skipped" if is_over or (status == Status.DEPLOYING and not pipeline.deploy) else "pending"


class SensitiveFiles(ResponseModel):
    """Secrets and personal data in the files of a pipeline."""

    prompts_file: Sensitive
    held_out_file: Sensitive | None = Field(description="Null if the held-out prompts are part of `prompts_file`.")

    @classmethod
    def of(cls, reports: Mapping[str, Any] | None) -> Self | None:
        return None if reports is None else cls.model_validate(reports)


class PipelineObject(ResponseModel):
    id: str
    object: Literal["pipeline"] = "pipeline"
    name: str
    model: str
    status: Annotated[str, OneOf(Status)]
    prompts_file: str
    answers: Annotated[str, OneOf(Pipeline.Answers)]
    held_out_file: str
    held_out_duplicates: int = Field(
        description="Rows of your `held_out_file` that are left out because their prompts are training prompts."
    )
    contamination: Contamination | None = Field(
        description="Training prompts that are equal or similar to held-out prompts. Null for pipelines that were "
        "created before prompts were compared."
    )
    sensitive: SensitiveFiles | None = Field(
        description="Secrets and personal data in the files. Null if they were not scanned."
    )
    distillation: SkipValidation[Figures | None] = Field(
        description="How the prompts are answered: `on_truncation`, `max_continued_tokens`."
    )
    training: SkipValidation[Figures]
    evaluation: SkipValidation[Figures]
    engine: EngineOptions
    hardware: str | None = Field(description="The requested device of all stages. Null means any device.")
    gate: SkipValidation[Figures]
    deploy: bool
    stages: list[StageObject]
    batch_id: str | None
    speculator_id: str | None
    deployment_id: str | None
    quote_id: str | None = Field(description="The quote whose cap pauses the pipeline.")
    paused: SkipValidation[Paused | None] = Field(
        description="Why the endpoint waits or is stopped: the quote has reached its cap, or the endpoint could not be "
        "started after the cap was raised. For paused jobs of other stages, `stages` has the reason."
    )
    cost: Amount = Field(
        description="The cost so far: the tokens of the batch, and the device time of the attempts that have ended, "
        "less credits."
    )
    report: SkipValidation[Figures | None]
    error: SkipValidation[Failure | None]
    created_at: Unix
    finished_at: Unix | None

    @classmethod
    def of(cls, pipeline: Any) -> Self:
        """`pipeline` comes from `pipelines_list`, which selects the related rows and computes the cost."""
        tokens = 0 if pipeline.batch is None else pipeline.batch.cost_nanousd
        evaluation = pipeline.evaluation_job
        report = evaluation.result if evaluation is not None and evaluation.status == Job.Status.SUCCEEDED else None
        return cls.from_row(
            pipeline,
            model=pipeline.base_model.name,
            prompts_file=pipeline.prompts_file_id,
            held_out_file=pipeline.held_out_file_id,
            engine=EngineOptions.model_validate(pipeline.engine or {}),
            hardware=pipeline.hardware or None,
            stages=StageObject.all_of(pipeline),
            cost=Amount.of(tokens + pipeline.device_nanousd),
            sensitive=SensitiveFiles.of(pipeline.sensitive),
            contamination=None if (found := pipeline.contamination) is None else Contamination.of(found),
            report=report,
        )
