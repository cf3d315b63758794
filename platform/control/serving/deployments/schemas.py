"""Requests and responses of deployments."""

import datetime as dt
from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import Failure, OneOf, RequestModel, ResponseModel, Text, Unix
from control.models.engines.schemas import EngineOptions, Hardware, ValidateOnly
from control.queue.jobs.schemas import Blocked
from control.serving.acceptance.options import AlarmOptions, alarm_of
from control.serving.acceptance.schemas import DeploymentAcceptance
from control.serving.deployments.figures import PeriodFigures
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.scaling import NumReplicas, ScalingOptions, scaling_of

MAX_ADAPTERS = 32
ALLOW_OUTPUT_CHANGE = (
    "Accepts that answers change. This is required if the old or the new speculator is a `turbo_lora`, because its "
    "adapter takes part in every answer."
)

_REMEMBER_ANSWERS = (
    "Whether the engine may draft tokens that it copies from a project's past answers. It keeps these answers only in "
    "the memory of its process."
)
_REPLICAS = "How many engine processes answer the requests. Each of them occupies a device."
_AdapterIds = Annotated[list[Annotated[str, Text(40)]], Field(max_length=MAX_ADAPTERS)]


class DeploymentOptions(RequestModel):
    name: Annotated[str, Text(64)]
    model: Annotated[str, Text(120)]
    speculator_id: Annotated[str, Text(40)] | None = None
    adapters: _AdapterIds = Field(default_factory=list, description="The ids of the adapters.")
    remember_answers: bool = Field(default=True, description=_REMEMBER_ANSWERS)
    engine: EngineOptions = EngineOptions()
    replicas: NumReplicas = Field(default=1, description=_REPLICAS)
    scaling: ScalingOptions = ScalingOptions()
    acceptance_alarm: AlarmOptions = AlarmOptions()
    hardware: Hardware = None


class DeploymentInput(DeploymentOptions):
    validate_only: ValidateOnly = False


class DeploymentUpdateInput(RequestModel):
    """A parameter that is left out does not change."""

    speculator_id: Annotated[str, Text(40)] | None = None
    adapters: _AdapterIds = Field(
        default_factory=list, description="The ids of all adapters that the deployment serves from now on."
    )
    allow_output_change: bool = Field(default=False, description=ALLOW_OUTPUT_CHANGE)
    remember_answers: bool = Field(default=True, description=_REMEMBER_ANSWERS)
    replicas: NumReplicas = Field(default=1, description=_REPLICAS)
    scaling: ScalingOptions = ScalingOptions()
    acceptance_alarm: AlarmOptions = AlarmOptions()


class ServedAdapter(ResponseModel):
    id: str
    name: str
    model: str = Field(description="The value of `model` in requests for this adapter.")


class DeploymentObject(ResponseModel):
    id: str
    object: Literal["deployment"] = "deployment"
    name: str = Field(description="The value of `model` in requests to this deployment.")
    model: str
    speculator_id: str | None
    adapters: list[ServedAdapter]
    remember_answers: bool
    engine: EngineOptions
    hardware: str | None = Field(description="The requested device. Null means any device.")
    replicas: int = Field(description=_REPLICAS)
    ready_replicas: int = Field(
        description="The number of replicas that are ready now. Sleeping replicas are not counted."
    )
    scaling: ScalingOptions
    acceptance_alarm: AlarmOptions
    acceptance: DeploymentAcceptance | None = Field(
        description="Whether the acceptance length has dropped. Null if there is no speculator, or if its acceptance "
        "is not watched yet."
    )
    desired_state: Annotated[str, OneOf(Deployment.Desired)]
    state: Annotated[str, OneOf(Deployment.State)]
    error: SkipValidation[Failure | None]
    blocked: SkipValidation[Blocked | None] = Field(
        description="Why a replica waits for a device. Null if no replica waits for a device."
    )
    created_at: Unix
    healthy_at: Unix | None

    @classmethod
    def of(cls, deployment: Deployment) -> Self:
        """Customers do not see the engine's process id, port and token."""
        adapters = [
            ServedAdapter(id=adapter.pk, name=adapter.name, model=adapter.model_name(deployment.name))
            for adapter in deployment.adapters.all()
        ]
        options = EngineOptions.model_validate(deployment.engine or {})
        ready = [replica for replica in deployment.replicas.all() if replica.state == Replica.State.READY]
        return cls.from_row(
            deployment,
            model=deployment.base_model.name,
            adapters=adapters,
            engine=options,
            hardware=deployment.hardware or None,
            replicas=deployment.num_replicas,
            ready_replicas=len(ready),
            scaling=scaling_of(deployment),
            acceptance_alarm=alarm_of(deployment),
            acceptance=DeploymentAcceptance.of(deployment),
            blocked=blocked_of(deployment),
        )


def blocked_of(deployment: Deployment) -> dict[str, str] | None:
    """Returns the reason of the first replica that waits for a device."""
    replicas = sorted(deployment.replicas.all(), key=lambda replica: replica.number)
    return next((replica.blocked for replica in replicas if replica.blocked is not None), None)


class DeploymentMetrics(ResponseModel):
    """The figures of one bucket of time. A figure is null if the bucket has no data from which to compute it."""

    object: Literal["deployment.metrics"] = "deployment.metrics"
    start_time: Unix
    end_time: Unix
    num_requests: int
    prompt_tokens: int
    generation_tokens: int
    tokens_per_second: float | None
    acceptance_length: float | None = Field(
        description="Tokens per forward pass of the model: 1 + accepted tokens / number of drafts."
    )
    acceptance_rate: float | None = Field(description="The share of drafted tokens that were accepted.")
    latency_seconds: float | None = Field(description="The mean over the requests.")
    time_to_first_token_seconds: float | None = Field(description="The mean over the requests.")

    @classmethod
    def of(cls, start: dt.datetime, figures: PeriodFigures, *, seconds: int) -> Self:
        return cls.from_row(
            figures,
            start_time=start,
            end_time=start + dt.timedelta(seconds=seconds),
            prompt_tokens=round(figures.counts["prompt_tokens"]),
            generation_tokens=round(figures.counts["generation_tokens"]),
            time_to_first_token_seconds=figures.first_token_seconds,
        )


class DeploymentMetricsPage(ResponseModel):
    object: Literal["page"] = "page"
    data: list[DeploymentMetrics]
    has_more: bool
    next_page: str | None
