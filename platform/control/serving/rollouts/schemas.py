"""Requests and responses of rollouts."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import IntRange, Number, OneOf, RequestModel, ResponseModel, Text, Unix
from control.serving.deployments.schemas import ALLOW_OUTPUT_CHANGE
from control.serving.rollouts.models import Rollout


class RolloutInput(RequestModel):
    speculator_id: Annotated[str, Text(40)]
    mode: Annotated[str, OneOf(Rollout.Mode.values)] = Field(
        default="canary",
        description="`canary`: the new speculator answers a share of the requests. `shadow`: it answers copies of a "
        "share of the requests; its answers are compared with those that the callers got, and are discarded.",
    )
    share_percent: Annotated[int, IntRange(1, 50)] = 10
    min_requests: Annotated[int, IntRange(1, 1_000_000)] = Field(
        default=100,
        description="No promotion before the new speculator has answered so many requests. In mode `shadow`, as many "
        "answers must be equal.",
    )
    max_acceptance_drop: Annotated[Number, Field(ge=0, le=1)] = 0.05
    max_error_rate: Annotated[Number, Field(ge=0, le=1)] = 0.01
    alpha: Annotated[Number, Field(ge=0.000001, le=0.5)] = Field(
        default=0.05, description="The largest probability that the evidence is ever misread, over all gates and times."
    )
    first_token_seconds: Annotated[Number, Field(gt=0, le=600)] | None = Field(
        default=None, description="A later first token of a stream is slow. Null: not compared."
    )
    inter_token_seconds: Annotated[Number, Field(gt=0, le=600)] | None = Field(
        default=None, description="A longer mean time between the tokens of a stream is slow. Null: not compared."
    )
    max_slow_increase: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=0.02, description="By how much the share of slow requests may increase."
    )
    max_seconds: Annotated[int, IntRange(60, 7 * 86400)] = 86400
    max_requests: Annotated[int, IntRange(1, 10_000_000)] = Field(
        default=100_000, description="Requests to the new speculator after which an undecided rollout ends."
    )
    on_undecided: Annotated[str, OneOf(Rollout.OnUndecided.values)] = Field(
        default="roll_back",
        description="The end of a rollout that is undecided after `max_seconds` or `max_requests`.",
    )
    watch_seconds: Annotated[int, IntRange(0, 30 * 86400)] = Field(
        default=0,
        description="How long after the promotion the gates compare the new speculator with the evidence of the "
        "previous one, and return to that if a gate fails. 0: not at all.",
    )
    allow_output_change: bool = Field(default=False, description=ALLOW_OUTPUT_CHANGE)


class RolloutReason(ResponseModel):
    """The reason for the outcome of the rollout."""

    code: str
    message: str


class RolloutFigures(ResponseModel):
    """Figures of one process during the trial."""

    num_requests: int
    num_failed: int
    acceptance_length: float | None
    error_rate: float


class RolloutComparison(ResponseModel):
    canary: RolloutFigures
    stable: RolloutFigures


class RolloutInterval(ResponseModel):
    """A part of the numbers from 0 to 1 that contains the true mean at all times, with the stated probability."""

    low: float
    high: float


class RolloutGate(ResponseModel):
    name: Annotated[str, OneOf(("acceptance", "errors", "first_token", "inter_token", "equality"))]
    outcome: Annotated[str, OneOf(("passed", "failed", "open"))]
    is_required: bool = Field(
        description="Whether a promotion needs the outcome `passed`; otherwise it needs another outcome than `failed`."
    )
    message: str
    candidate: RolloutInterval | None = Field(
        description="Of the new speculator's forward passes per token, or of the share of its failed or slow requests."
    )
    stable: RolloutInterval | None


class RolloutSide(ResponseModel):
    """What the gateways have measured of one side."""

    num_requests: int = Field(description="Complete answers.")
    num_failed: int
    error_rate: float
    acceptance_length: float | None
    num_measured: int = Field(description="Answers with statistics of speculation.")
    num_timed: int = Field(description="Streams whose first token was timed.")
    num_slow_first_token: int
    num_slow_inter_token: int
    num_equal: int = Field(description="Answers to copies that were equal to the caller's answer.")
    num_different: int
    num_not_comparable: int = Field(
        description="Copies that were not compared, because one of the two answers was incomplete or its seed unknown."
    )
    num_dropped: int = Field(description="Copies that were not sent, because too many waited.")
    different_request_id: str | None = Field(description="The first request whose answers differed.")


class RolloutSides(ResponseModel):
    candidate: RolloutSide
    stable: RolloutSide


class RolloutDecision(ResponseModel):
    decision: Annotated[str, OneOf(("promote", "roll_back", "undecided"))]
    code: str
    message: str


class RolloutVerdict(ResponseModel):
    """Rules, evidence and verdict of a rollout's trial, or of the time after its promotion."""

    rules: dict[str, Any]
    gates: list[RolloutGate]
    evidence: RolloutSides
    verdict: RolloutDecision
    certificate: dict[str, Any] | None = Field(
        description="Signs the members above, with fractions as decimal strings, once there is a verdict. Verified "
        "like the certificates of evaluations, with the format `slipstream.rollout/1`."
    )


class RolloutObject(ResponseModel):
    id: str
    object: Literal["deployment.rollout"] = "deployment.rollout"
    deployment_id: str
    speculator_id: str
    previous_speculator_id: str | None
    status: Annotated[str, OneOf(Rollout.Status)]
    mode: Annotated[str, OneOf(Rollout.Mode.values)]
    share_percent: int = Field(description="The canary's share of the requests, or of their copies.")
    min_requests: int
    max_acceptance_drop: float
    max_error_rate: float
    alpha: float
    first_token_seconds: float | None
    inter_token_seconds: float | None
    max_slow_increase: float
    max_seconds: int
    max_requests: int
    on_undecided: Annotated[str, OneOf(Rollout.OnUndecided.values)]
    watch_seconds: int
    reason: SkipValidation[RolloutReason | None]
    figures: SkipValidation[RolloutComparison | None] = Field(description="The figures that decided the rollout.")
    trial: SkipValidation[RolloutVerdict | None] = Field(description="Null until the trial begins.")
    watch: SkipValidation[RolloutVerdict | None] = Field(
        description="The time after the promotion. Its `candidate` is the promoted speculator, and its `stable` the "
        "evidence of the previous one from the trial."
    )
    created_at: Unix
    started_at: Unix | None = Field(description="When the canary was ready.")
    watched_at: Unix | None = Field(description="When the time after the promotion began.")
    finished_at: Unix | None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        return cls.from_row(rollout, previous_speculator_id=rollout.previous_id, figures=rollout.figures or None)
