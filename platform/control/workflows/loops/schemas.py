"""Requests and responses of loops and their rounds."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SkipValidation

from control.billing.spending.schemas import Dollars
from control.billing.usage.schemas import Amount
from control.core.api.schemas import Failure, IntRange, Number, OneOf, RequestModel, ResponseModel, Unix
from control.serving.captures.services import MAX_REQUESTS
from control.serving.rollouts.decision import Terms
from control.serving.rollouts.models import Rollout
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.selectors import month_spend, round_running
from control.workflows.pipelines.schemas import Evaluation, Gate
from control.workflows.prompt_files.contamination import OnContamination

DAY_SECONDS = 86_400


class LoopTriggers(RequestModel):
    """The conditions under which a round begins. One of them is enough."""

    acceptance_drop: bool = Field(
        default=True,
        description="Whether a round begins when the acceptance length has dropped. Each drop begins one round.",
    )
    every_hours: Annotated[int, IntRange(1, 8_760)] | None = Field(
        default=None,
        description="A round begins this number of hours after the last round began, or after the loop was set.",
    )
    new_requests: Annotated[int, IntRange(1, MAX_REQUESTS)] | None = Field(
        default=None,
        description="A round begins when this number of requests has been captured since the last round began, or "
        "since the loop was set.",
    )


class LoopLimits(RequestModel):
    min_seconds_between_rounds: Annotated[int, IntRange(0, 366 * DAY_SECONDS)] = Field(
        default=DAY_SECONDS, description="The minimum time from the start of a round to the start of the next round."
    )
    monthly_budget: Dollars | None = Field(
        default=None,
        description="The limit in US dollars for the total cost of the rounds that begin in one calendar month (UTC). "
        "When it is reached, no round begins, and a running round is stopped.",
    )
    max_rows: Annotated[int, IntRange(20, MAX_REQUESTS)] = Field(
        default=5_000,
        description="The maximum number of captured requests that a round uses. It uses the newest requests.",
    )


class LoopRecipe(RequestModel):
    """How a round trains. If the present speculator has the same kind, the training continues from it."""

    kind: str | None = Field(
        default=None, description="The kind of the new speculator. Null means the kind of the present speculator."
    )
    seed: Annotated[int, IntRange(0, (1 << 32) - 1)] = 0
    max_seconds: Annotated[Number, Field(ge=0.1, le=2_592_000)] | None = Field(
        default=None, description="The longest time of the training. Null means the default of the kind."
    )
    hyperparameters: dict[str, Any] = Field(
        default={}, description="Hyperparameters of the kind, as in `training` of a pipeline."
    )
    min_rows: Annotated[int, IntRange(20, MAX_REQUESTS)] = Field(
        default=200,
        description="The number of captured requests that a round waits for. After a drop of the acceptance length, "
        "only requests since the beginning of the drop count.",
    )
    max_capture_seconds: Annotated[int, IntRange(60, 30 * DAY_SECONDS)] = Field(
        default=7 * DAY_SECONDS, description="The longest time that a round waits for `min_rows` requests."
    )
    held_out: Annotated[int, IntRange(1)] | None = Field(
        default=None,
        description="The number of captured requests on which both speculators are evaluated. They are left out of the "
        "training.",
    )
    on_contamination: Annotated[str, OneOf(OnContamination)] = OnContamination.WARN.value
    evaluation: Evaluation = Evaluation()


class LoopGate(Gate):
    """The gate of a pipeline, and the minimum gain over the present speculator."""

    min_acceptance_gain: Annotated[Number, Field(ge=0, le=10)] = Field(
        default=0.02, description="The minimum relative gain of the acceptance length on the held-out requests."
    )


class LoopRollout(RequestModel):
    """The conditions of the rollout, as in `POST /v1/deployments/{deployment_id}/rollouts`."""

    share_percent: Annotated[int, IntRange(1, 50)] = 10
    min_requests: Annotated[int, IntRange(1, 1_000_000)] = 100
    max_acceptance_drop: Annotated[Number, Field(ge=0, le=1)] = 0.05
    max_error_rate: Annotated[Number, Field(ge=0, le=1)] = 0.01
    max_seconds: Annotated[int, IntRange(60, 7 * DAY_SECONDS)] = DAY_SECONDS
    mode: Annotated[str, OneOf(Rollout.Mode.values)] = Field(
        default="canary", description="`shadow`: the new speculator answers copies of the requests."
    )
    alpha: Annotated[Number, Field(ge=0.000001, le=0.5)] = Field(
        default=0.05, description="The largest probability that the evidence is ever misread."
    )

    def terms(self) -> Terms:
        return Terms(
            min_requests=self.min_requests,
            max_acceptance_drop=self.max_acceptance_drop,
            max_error_rate=self.max_error_rate,
            alpha=self.alpha,
        )

    def stored(self) -> dict[str, Any]:
        """Returns what the row stores. The previous release refuses `mode` and `alpha`, which it does not know, so they
        are left out if they have their defaults."""
        unknown = {name for name in ("mode", "alpha") if getattr(self, name) == type(self).model_fields[name].default}
        return self.model_dump(exclude=unknown)


class LoopInput(RequestModel):
    """A parameter that is left out gets its default."""

    enabled: bool = True
    triggers: LoopTriggers = LoopTriggers()
    limits: LoopLimits = LoopLimits()
    recipe: LoopRecipe = LoopRecipe()
    gate: LoopGate = LoopGate()
    rollout: LoopRollout = LoopRollout()


class LoopUpdateInput(LoopInput):
    """A parameter that is left out does not change. A given parameter is replaced as a whole."""


class LoopLimitsShown(ResponseModel):
    min_seconds_between_rounds: int
    monthly_budget: Amount | None
    max_rows: int


class LoopObject(ResponseModel):
    id: str
    object: Literal["deployment.loop"] = "deployment.loop"
    deployment_id: str
    enabled: bool
    triggers: LoopTriggers
    limits: LoopLimitsShown
    recipe: LoopRecipe
    gate: LoopGate
    rollout: LoopRollout
    running_round_id: str | None
    spent_this_month: Amount = Field(
        description="The cost of the rounds that began in the present calendar month (UTC)."
    )
    blocked: SkipValidation[Failure | None] = Field(
        description="Why no round began although a trigger applied. Null if nothing prevents a round."
    )
    created_at: Unix

    @classmethod
    def of(cls, loop: Loop) -> Self:
        running = round_running(loop.deployment)
        budget = None if loop.budget_nanousd is None else Amount.of(loop.budget_nanousd)
        return cls.from_row(
            loop,
            triggers=LoopTriggers.model_validate(loop.triggers),
            limits=LoopLimitsShown(**loop.limits, monthly_budget=budget),
            recipe=LoopRecipe.model_validate(loop.recipe),
            gate=LoopGate.model_validate(loop.gate),
            rollout=LoopRollout.model_validate(loop.rollout),
            running_round_id=None if running is None else running.pk,
            spent_this_month=Amount.of(month_spend(loop.deployment)),
        )


class RoundFigures(ResponseModel):
    acceptance_length: float | None
    tokens_per_second: float | None


class RoundComparison(ResponseModel):
    """Figures of both speculators on the held-out requests, at the concurrency that the gate judged."""

    concurrency: int | None
    old: RoundFigures | None = Field(description="Null if the deployment served without a speculator.")
    new: RoundFigures


class RoundStep(ResponseModel):
    status: Annotated[str, OneOf(LoopRound.Status)]
    at: Unix


class LoopRoundObject(ResponseModel):
    id: str
    object: Literal["deployment.loop.round"] = "deployment.loop.round"
    deployment_id: str
    status: Annotated[str, OneOf(LoopRound.Status)]
    trigger: Annotated[str, OneOf(LoopRound.Trigger)]
    reason: SkipValidation[Failure | None] = Field(description="Why the round ended.")
    figures: SkipValidation[RoundComparison | None]
    cost: Amount = Field(description="The cost so far: the tokens and device time of its pipeline and its canary.")
    previous_speculator_id: str | None = Field(description="The speculator that served when the training began.")
    speculator_id: str | None = Field(description="The new speculator.")
    prompts_file: str | None = Field(description="The captured requests on which the new speculator is trained.")
    held_out_file: str | None = Field(
        description="The captured requests on which the old and the new speculator are evaluated."
    )
    pipeline_id: str | None
    batch_id: str | None
    evaluation_id: str | None
    rollout_id: str | None
    timeline: SkipValidation[list[RoundStep]] = Field(
        description="Each status of the round, with the time at which it began."
    )
    created_at: Unix
    finished_at: Unix | None

    @classmethod
    def of(cls, row: Any) -> Self:
        """Args: row: a row of `rounds_list`."""
        pipeline = row.pipeline
        evaluation_job = None if pipeline is None else pipeline.evaluation_job
        return cls.from_row(
            row,
            cost=Amount.of(row.cost_nanousd),
            previous_speculator_id=row.previous_id,
            speculator_id=None if pipeline is None else pipeline.speculator_id,
            prompts_file=None if pipeline is None else pipeline.prompts_file_id,
            held_out_file=None if pipeline is None else pipeline.held_out_file_id,
            batch_id=None if pipeline is None else pipeline.batch_id,
            evaluation_id=None if evaluation_job is None else evaluation_job.evaluation.pk,
        )
