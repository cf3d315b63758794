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
        description="The number of requests that the new speculator must have answered before it can be promoted. In "
        "mode `shadow`, this number of its answers must also be equal to the answers that the callers got.",
    )
    max_acceptance_drop: Annotated[Number, Field(ge=0, le=1)] = 0.05
    max_error_rate: Annotated[Number, Field(ge=0, le=1)] = 0.01
    alpha: Annotated[Number, Field(ge=0.000001, le=0.5)] = Field(
        default=0.05,
        description="The largest probability that any of the statistical gates decides wrongly at any time of the "
        "rollout.",
    )
    first_token_seconds: Annotated[Number, Field(gt=0, le=600)] | None = Field(
        default=None,
        description="A stream is slow if its first token comes later than this. Null means that these times are not "
        "compared.",
    )
    inter_token_seconds: Annotated[Number, Field(gt=0, le=600)] | None = Field(
        default=None,
        description="A stream is slow if the mean time between its tokens is longer than this. Null means that these "
        "times are not compared.",
    )
    max_slow_increase: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=0.02, description="How much the share of slow requests may increase."
    )
    max_seconds: Annotated[int, IntRange(60, 7 * 86400)] = 86400
    max_requests: Annotated[int, IntRange(1, 10_000_000)] = Field(
        default=100_000,
        description="The number of requests to the new speculator after which an undecided rollout ends.",
    )
    on_undecided: Annotated[str, OneOf(Rollout.OnUndecided.values)] = Field(
        default="roll_back",
        description="What happens to a rollout that is undecided after `max_seconds` or `max_requests`.",
    )
    watch_seconds: Annotated[int, IntRange(0, 30 * 86400)] = Field(
        default=0,
        description="The time after the promotion in which the gates compare the new speculator with the evidence of "
        "the previous one. If a gate fails in this time, the previous speculator serves again. With 0, nothing is "
        "compared after the promotion.",
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
    """An interval between 0 and 1. With a probability that `alpha` determines, it always contains the true mean."""

    low: float
    high: float


class RolloutGate(ResponseModel):
    name: Annotated[str, OneOf(("acceptance", "errors", "first_token", "inter_token", "equality"))]
    outcome: Annotated[str, OneOf(("passed", "failed", "open"))]
    is_required: bool = Field(
        description="Whether a promotion needs the outcome `passed`. If not, the outcome `open` suffices too."
    )
    message: str
    candidate: RolloutInterval | None = Field(
        description="The interval of the new speculator's forward passes per token, or of the share of its failed or "
        "slow requests."
    )
    stable: RolloutInterval | None


class RolloutSide(ResponseModel):
    """The gateways' measurements of one side: the candidate or the stable side."""

    num_requests: int = Field(description="The number of complete answers.")
    num_failed: int
    error_rate: float
    acceptance_length: float | None
    num_measured: int = Field(description="The number of answers with statistics of speculation.")
    num_timed: int = Field(description="The number of streams whose first token was timed.")
    num_slow_first_token: int
    num_slow_inter_token: int
    num_equal: int = Field(description="The number of answers to copies that were equal to the caller's answer.")
    num_different: int
    num_not_comparable: int = Field(
        description="The number of copies that were not compared, because one of the two answers was incomplete or its "
        "seed was unknown."
    )
    num_dropped: int = Field(
        description="The number of copies that were not sent, because too many copies were waiting."
    )
    different_request_id: str | None = Field(description="The first request whose answers differed.")


class RolloutSides(ResponseModel):
    candidate: RolloutSide
    stable: RolloutSide


class RolloutDecision(ResponseModel):
    decision: Annotated[str, OneOf(("promote", "roll_back", "undecided"))]
    code: str
    message: str


class RolloutVerdict(ResponseModel):
    """Rules, evidence and verdict of a rollout's trial, or of the comparison after its promotion."""

    rules: dict[str, Any]
    gates: list[RolloutGate]
    evidence: RolloutSides
    verdict: RolloutDecision
    certificate: dict[str, Any] | None = Field(
        description="A signed statement with the members above, in which fractions are decimal strings. Null until "
        "there is a verdict. It is verified like the certificate of an evaluation, and its format is "
        "`slipstream.rollout/1`."
    )


class RolloutObject(ResponseModel):
    id: str
    object: Literal["deployment.rollout"] = "deployment.rollout"
    deployment_id: str
    speculator_id: str
    previous_speculator_id: str | None
    status: Annotated[str, OneOf(Rollout.Status)]
    mode: Annotated[str, OneOf(Rollout.Mode.values)]
    share_percent: int = Field(
        description="The percentage of the requests that the canary answers, or of which it answers copies."
    )
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
    trial: SkipValidation[RolloutVerdict | None] = Field(
        description="The comparison in the trial. Null before the trial."
    )
    watch: SkipValidation[RolloutVerdict | None] = Field(
        description="The comparison after the promotion. Its `candidate` is the promoted speculator, and its `stable` "
        "is the evidence of the previous speculator from the trial."
    )
    created_at: Unix
    started_at: Unix | None = Field(description="When the canary was ready.")
    watched_at: Unix | None = Field(description="When the comparison after the promotion began.")
    finished_at: Unix | None

    @classmethod
    def of(cls, rollout: Rollout) -> Self:
        return cls.from_row(rollout, previous_speculator_id=rollout.previous_id, figures=rollout.figures or None)
