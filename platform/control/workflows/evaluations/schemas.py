"""Requests and responses of evaluations, and of their certificates."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.billing.usage.schemas import Amount
from control.core.api.schemas import Figures, OneOf, RequestModel, ResponseModel, Unix
from control.models.engines.schemas import MAX_FURTHER_ARMS, EngineOptions, Hardware, ValidateOnly
from control.queue.jobs.models import Job
from control.queue.jobs.schemas import Progress
from control.workflows.evaluations.capacity import CapacityPlan
from control.workflows.prompt_files.schemas import Overlap


class EvaluationOptions(RequestModel, strict=True):
    speculator_id: str
    prompts_file: str | None = None
    concurrencies: Annotated[list[Annotated[int, Field(ge=1, le=256)]], Field(min_length=1, max_length=8)] = [
        1, 4, 16, 32,
    ]  # fmt: skip
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    repeats: Annotated[int, Field(ge=1, le=10)] = 1
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=100_000)] | None = None  # USD; None: the installation's price
    engine: EngineOptions | None = Field(
        default=None,
        description="The engine's options. They should be those of the deployment that will serve the speculator.",
    )
    compare_with: list[str] = Field(
        default=[],
        max_length=MAX_FURTHER_ARMS,
        description="Further arms to compare: ids of speculators and base speculators for the same model, `suffix` or "
        "`ngram`.",
    )
    hardware: Hardware = None


class EvaluationRequest(EvaluationOptions):
    """Without `prompts_file`, the prompts that the speculator's pipeline held out are used."""

    validate_only: ValidateOnly = False


class EvaluationObject(ResponseModel):
    id: str
    object: Literal["evaluation"] = "evaluation"
    status: Annotated[str, OneOf(Job.Status)]
    speculator_id: str
    model: str
    prompts_file: str | None
    contamination: Overlap | None = Field(
        description="Training prompts of the speculator that are equal or similar to prompts of `prompts_file`. Null "
        "without `prompts_file`, and if the training prompts are unknown or deleted."
    )
    concurrencies: SkipValidation[list[int]]
    max_tokens: SkipValidation[int | None]
    repeats: SkipValidation[int]
    price_per_gpu_hour: SkipValidation[float | None] = Field(
        description="The price of one hour of a GPU in US dollars."
    )
    engine: EngineOptions
    hardware: str | None = Field(description="The requested device. Null means any device.")
    compare_with: SkipValidation[list[str]] = Field(
        description="The further arms of the evaluation. If there are any, the report has the figures of all arms in "
        "`arms`. In `pairs`, it has the ratio of the speeds of each pair of arms, with a confidence interval."
    )
    job_id: str
    progress: Progress | None
    metrics: SkipValidation[Figures] = Field(
        description="The latest metrics; `eta_seconds` is estimated from the speed at the current concurrency."
    )
    result: SkipValidation[Literal["equal", "equal_with_adapter", "different"] | None] = Field(
        description="The certificate's result. `equal_with_adapter`: the answers equal those of the model with the "
        "speculator's own adapter, but not those of the model without an adapter."
    )
    report: SkipValidation[Figures | None] = Field(description="The report's `definitions` explain its figures.")
    error: SkipValidation[Figures | None]
    cost: Amount = Field(description="The cost so far: the device time of the attempts that have ended.")
    created_at: Unix
    started_at: Unix | None
    finished_at: Unix | None

    @classmethod
    def of(cls, evaluation: Any) -> Self:
        """Args: evaluation: a row of `evaluations_list`."""
        job, settings, certificate = evaluation.job, evaluation.settings, evaluation.certificate or {}
        return cls.from_row(
            job,
            id=evaluation.pk,
            speculator_id=evaluation.speculator_id,
            model=evaluation.speculator.base_model.name,
            prompts_file=evaluation.prompts_file_id,
            contamination=Overlap.of(evaluation.contamination),
            concurrencies=settings.get("concurrencies", [1]),
            max_tokens=settings.get("max_tokens"),
            repeats=settings.get("repeats", 1),
            price_per_gpu_hour=settings.get("price_per_gpu_hour"),
            engine=EngineOptions.model_validate(settings.get("engine") or {}),
            hardware=job.hardware or None,
            compare_with=settings.get("compare_with", []),
            job_id=job.pk,
            progress=Progress.of(job),
            result=certificate.get("statement", {}).get("result"),
            report=job.result if job.status == Job.Status.SUCCEEDED else None,
            cost=Amount.of(evaluation.device_nanousd),
            created_at=evaluation.created_at,
        )


class CertificateSignature(ResponseModel):
    algorithm: Literal["ed25519"]
    key_id: str = Field(description="The first 16 hexadecimal digits of SHA-256 over the public key's 32 bytes.")
    value: str = Field(
        description="The signature in Base64. It signs the certificate without `signature`, in the form of RFC 8785."
    )


class CertificateObject(ResponseModel):
    """A signed statement about one evaluation."""

    object: Literal["certificate"]
    format: Literal["slipstream.equality/1"]
    statement: Figures
    signature: CertificateSignature


class PublicKeyObject(ResponseModel):
    object: Literal["public_key"]
    algorithm: Literal["ed25519"]
    key_id: str
    public_key: str = Field(description="The public key in PEM format.")


class CapacityArm(ResponseModel):
    arm: Literal["plain", "speculative"] = Field(
        description="`plain`: without the speculator. `speculative`: with the speculator."
    )
    tokens_per_second: float = Field(description="The measured speed of one device.")
    requests_per_second_per_device: float = Field(
        description="How many requests per second one device answers at the stated `utilisation`."
    )
    devices: int
    devices_low: int | None = Field(
        description="The lower bound of `devices`. Null if the evaluation does not show how the speed varies."
    )
    devices_high: int | None
    cost_per_month: float | None = Field(description="US dollars. Null if there is no price.")
    cost_per_month_low: float | None
    cost_per_month_high: float | None


class CapacityPlanObject(ResponseModel):
    """The devices that a rate of requests needs.

    The plan is computed from the measured speeds of an evaluation. It is not stored.
    """

    object: Literal["capacity_plan"] = "capacity_plan"
    evaluation_id: str
    requests_per_second: float
    output_tokens: float = Field(description="The mean number of tokens of an answer.")
    measured_output_tokens: float
    concurrency: int = Field(description="The evaluated concurrency whose speeds are used.")
    utilisation: float
    device: str
    price_per_device_hour: float | None = Field(description="US dollars.")
    hours_per_month: int
    arms: list[CapacityArm]
    interval_from: Literal["pairs", "acceptance_length"] | None = Field(
        description="The figure of the report whose 95 % interval gives the bounds of the speculative arm. Null if "
        "there is no interval."
    )
    is_extrapolated: bool = Field(
        description="Whether the plan is about requests that were not measured. `extrapolated` gives the reasons."
    )
    extrapolated: list[str]

    @classmethod
    def of(cls, evaluation_id: str, plan: CapacityPlan) -> Self:
        return cls.from_row(plan, evaluation_id=evaluation_id, arms=[CapacityArm.from_row(arm) for arm in plan.arms])
