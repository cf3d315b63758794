"""Requests and responses of rollouts."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import IntRange, Number, OneOf, RequestModel, ResponseModel, Text, Unix
from control.serving.deployments.schemas import ALLOW_OUTPUT_CHANGE
from control.serving.rollouts.decision import Terms
from control.serving.rollouts.models import Rollout


class RolloutInput(RequestModel):
    speculator_id: Annotated[str, Text(40)]
    share_percent: Annotated[int, IntRange(1, 50)] = 10
    min_requests: Annotated[int, IntRange(1, 1_000_000)] = 100
    max_acceptance_drop: Annotated[Number, Field(ge=0, le=1)] = 0.05
    max_error_rate: Annotated[Number, Field(ge=0, le=1)] = 0.01
    max_seconds: Annotated[int, IntRange(60, 7 * 86400)] = 86400
    allow_output_change: bool = Field(default=False, description=ALLOW_OUTPUT_CHANGE)

    def terms(self) -> Terms:
        return Terms(
            min_requests=self.min_requests,
            max_acceptance_drop=self.max_acceptance_drop,
            max_error_rate=self.max_error_rate,
        )


class RolloutReason(ResponseModel):
    """The reason for the outcome of the rollout."""

    code: str
    message: str


class RolloutFigures(ResponseModel):
    """Figures of one process since the canary's first request."""

    num_requests: int
    num_failed: int
    acceptance_length: float | None
    error_rate: float


class RolloutComparison(ResponseModel):
    canary: RolloutFigures
    stable: RolloutFigures


class RolloutObject(ResponseModel):
    id: str
    object: Literal["deployment.rollout"] = "deployment.rollout"
    deployment_id: str
    speculator_id: str
    previous_speculator_id: str | None
    status: Annotated[str, OneOf(Rollout.Status)]
    share_percent: int = Field(description="The canary's share of the requests.")
    min_requests: int
    max_acceptance_drop: float
    max_error_rate: float
    max_seconds: int
    reason: SkipValidation[RolloutReason | None]
    figures: SkipValidation[RolloutComparison | None] = Field(description="The figures that decided the rollout.")
    created_at: Unix
    started_at: Unix | None = Field(description="When the canary was ready.")
    finished_at: Unix | None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        return cls.from_row(rollout, previous_speculator_id=rollout.previous_id, figures=rollout.figures or None)
