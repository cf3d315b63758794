"""Advances rounds. All calls are idempotent and safe under races: a second caller finds nothing to do.

A round's pipeline or rollout is created in the same transaction as the compare-and-swap that assigns it to the round.
Of two concurrent workers, therefore, only one creates it. If a worker is killed between two steps, the next worker
continues the round. No function waits: each call makes the transitions that are possible now.

The functions in `_STEPS` return whether they changed the round.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from django.db import transaction
from django.utils import timezone

from control.billing.usage.services import caller_of_job
from control.core.api.errors import ApiError
from control.core.api.requests import parse_request
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change, transaction_from_first_change
from control.models.catalog.models import Speculator
from control.queue.jobs.services import queued_quota_check
from control.serving.captures.selectors import capture_of
from control.serving.captures.services import capture_file_store
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollout_create
from control.tenants.authentication.caller import on_account_of
from control.tenants.row_security.each import each_as_tenant
from control.workflows.loops.gate import compared, objection
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.requests import training_of
from control.workflows.loops.schemas import LoopGate, LoopRecipe, LoopRollout
from control.workflows.loops.selectors import round_fresh, rounds_active
from control.workflows.loops.services import round_stop
from control.workflows.loops.state import LEGAL_MOVES, Status, transition
from control.workflows.loops.triggers import budget_spent, has_captured
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.requests import create_from
from control.workflows.pipelines.schemas import PipelineRequest

log = structlog.get_logger(__name__)

MAX_WAIT = dt.timedelta(days=1)  # for a rollout that cannot begin yet, or a queue that is full
TRY_AGAIN = dt.timedelta(minutes=10)  # after the captured requests had too few different rows
# Refusals that end by themselves, beside 429.
_PASSING_CODES = frozenset({"rollout_active", "deployment_not_ready", "hardware_not_found"})
_PIPELINE_STATUS = {
    Pipeline.Status.DISTILLING: Status.DISTILLING,
    Pipeline.Status.TRAINING: Status.TRAINING,
    Pipeline.Status.EVALUATING: Status.EVALUATING,
    Pipeline.Status.SUCCEEDED: Status.GATING,
}


class _OvertakenError(Exception):
    """Another process has changed the round first."""


def rounds_reconcile() -> None:
    """Advances all rounds that have not ended. Every worker calls it every few seconds."""
    each_as_tenant(
        rounds_active(), lambda row: round_advance(of=row), failure="could not advance a round", name="round_id"
    )


def round_advance(*, of: LoopRound) -> LoopRound:
    """Makes all transitions that are possible now."""
    while True:
        of = round_fresh(of)
        step = _STEPS.get(Status(of.status))
        if step is None or _stop_if_unwanted(of) or not step(of):
            return round_fresh(of)


def _stop_if_unwanted(of: LoopRound) -> bool:
    """Stops a round whose loop or deployment ended, or whose budget is spent. Returns whether it did."""
    loop: Loop | None = getattr(of.deployment, "loop", None)
    if loop is None or not loop.enabled:
        return round_stop(of=of, code="loop_disabled", message="The loop was switched off or deleted.")
    deployment = of.deployment
    if deployment.deleted_at is not None or deployment.desired_state == Deployment.Desired.STOPPED:
        return round_stop(of=of, code="deployment_stopped", message="The deployment was stopped.")
    if (spent := budget_spent(loop, of.created_at)) is not None:
        return round_stop(of=of, code=spent[0], message=spent[1])
    return False


def _capture(of: LoopRound) -> bool:
    recipe = LoopRecipe.model_validate(of.settings["recipe"])
    longest = dt.timedelta(seconds=recipe.max_capture_seconds)
    is_due = timezone.now().timestamp() >= of.settings.get("next_try_at", 0)
    if is_due and has_captured(of.deployment, recipe.min_rows, of.data_since):
        return _start_pipeline(of, recipe, longest)
    if _has_waited(of, longest):
        message = (
            f"Fewer than {recipe.min_rows} requests, or too few different ones, were captured in "
            f"{recipe.max_capture_seconds} seconds."
        )
        return _fail(of, "too_few_requests", message)
    return False


def _start_pipeline(of: LoopRound, recipe: LoopRecipe, longest_capture: dt.timedelta) -> bool:
    """Creates a file of the captured requests, and a pipeline that uses it.

    Their database rows and the round's new status are written in one transaction, after the file's content is stored.
    """
    caller = caller_of_job(job_id=of.settings["caller"], organization_id=of.organization_id)
    try:
        queued_quota_check(of.organization_id)  # before the file is written, because the queue may be full for long
        with on_account_of(caller), delete_stored_on_error(), transaction_from_first_change():
            file = capture_file_store(capture=capture_of(of.deployment), max_rows=of.settings["max_rows"])
            pipeline = create_from(of.organization, _pipeline_request(of, recipe, file.pk), [file])
            with change():
                previous = of.deployment.speculator_id
                if not transition(of, Status.DISTILLING, pipeline=pipeline, previous_id=previous):
                    raise _OvertakenError
    except _OvertakenError:
        return False
    except ApiError as error:
        if error.code == "too_few_rows":  # the same requests repeat, and the file has each of them once
            return _try_again_later(of)
        return _wait_or_fail(of, error, longest_capture + MAX_WAIT)
    return True


def _try_again_later(of: LoopRound) -> bool:
    """Lets the round wait for further requests, and limits how often their file is written meanwhile."""
    later = (timezone.now() + TRY_AGAIN).timestamp()
    log.info("a round waits for different requests", round_id=of.pk)
    LoopRound.objects.filter(pk=of.pk, status=Status.CAPTURING).update(settings={**of.settings, "next_try_at": later})
    return False


def _pipeline_request(of: LoopRound, recipe: LoopRecipe, prompts_file: str) -> PipelineRequest:
    deployment, serving = of.deployment, of.deployment.speculator
    training = training_of(recipe, serving)
    if serving is not None and _continues(serving, training["kind"], deployment):
        training["initial_speculator"] = serving.pk
    evaluation = recipe.evaluation.model_dump()
    if serving is not None:
        named = [name for name in evaluation["compare_with"] if name != serving.pk]
        evaluation["compare_with"] = [serving.pk, *named]
    body = {
        "name": deployment.name,
        "model": deployment.base_model.name,
        "prompts_file": prompts_file,
        "held_out": recipe.held_out,
        "on_contamination": recipe.on_contamination,
        "training": training,
        "evaluation": evaluation,
        "gate": {name: value for name, value in of.settings["gate"].items() if name != "min_acceptance_gain"},
        "deploy": False,
        "engine": deployment.engine,
        "hardware": deployment.hardware or None,
    }
    return parse_request(PipelineRequest, body)


def _continues(serving: Speculator, kind: str, deployment: Deployment) -> bool:
    return serving.kind == kind and serving.target_revision == deployment.base_model.revision


def _follow_pipeline(of: LoopRound) -> bool:
    """Gives the round the status of its pipeline."""
    pipeline = of.pipeline
    assert pipeline is not None, "capturing ended with a pipeline"
    match pipeline.status:
        case Pipeline.Status.REJECTED:
            return transition(of, Status.REJECTED, reason=pipeline.error, figures=_figures(of))
        case Pipeline.Status.FAILED:
            return transition(of, Status.FAILED, reason=pipeline.error)
        case Pipeline.Status.CANCELLED:
            reason = {"code": "pipeline_cancelled", "message": f"Pipeline {pipeline.pk} was cancelled."}
            return transition(of, Status.STOPPED, reason=reason)
    to = _PIPELINE_STATUS.get(Pipeline.Status(pipeline.status))
    return to in LEGAL_MOVES[Status(of.status)] and to is not None and transition(of, to)


def _figures(of: LoopRound) -> dict[str, Any] | None:
    assert of.pipeline is not None, "the pipeline has evaluated"
    assert of.pipeline.evaluation_job is not None, "the pipeline has evaluated"
    concurrency = LoopGate.model_validate(of.settings["gate"]).concurrency
    report, new = of.pipeline.evaluation_job.result, str(of.pipeline.speculator_id)
    return compared(report, new=new, old=of.previous_id, concurrency=concurrency)


def _gate(of: LoopRound) -> bool:
    """Judges the gain over the speculator that serves, and begins the rollout if it is enough."""
    if of.deployment.speculator_id != of.previous_id:
        message = "The deployment was given another speculator during the round."
        return round_stop(of=of, code="superseded", message=message)
    if (figures := _figures(of)) is None:
        return _fail(of, "not_compared", "The evaluation has no figures of the speculator that serves.")
    refusal = objection(figures, LoopGate.model_validate(of.settings["gate"]).min_acceptance_gain)
    if refusal is not None:
        reason = {"code": "gain_too_small", "message": refusal}
        return transition(of, Status.REJECTED, reason=reason, figures=figures)
    return _start_rollout(of, figures)


def _start_rollout(of: LoopRound, figures: Mapping[str, Any]) -> bool:
    assert of.pipeline is not None, "the pipeline has trained a speculator"
    assert of.pipeline.speculator is not None, "the pipeline has trained a speculator"
    terms = LoopRollout.model_validate(of.settings["rollout"])
    try:
        with transaction.atomic():
            rollout = rollout_create(
                deployment=of.deployment,
                speculator=of.pipeline.speculator,
                share_percent=terms.share_percent,
                terms=terms.terms(),
                max_seconds=terms.max_seconds,
                mode=terms.mode,
            )
            if not transition(of, Status.ROLLING_OUT, rollout=rollout, figures=figures):
                raise _OvertakenError
    except _OvertakenError:
        return False
    except ApiError as error:
        return _wait_or_fail(of, error)
    return True


def _follow_rollout(of: LoopRound) -> bool:
    assert of.rollout is not None, "the gate ended with a rollout"
    match of.rollout.status:
        case Rollout.Status.PROMOTED:
            return transition(of, Status.PROMOTED, reason=of.rollout.reason)
        case Rollout.Status.ROLLED_BACK:
            return transition(of, Status.ROLLED_BACK, reason=of.rollout.reason)
    return False


def _wait_or_fail(of: LoopRound, error: ApiError, longest: dt.timedelta = MAX_WAIT) -> bool:
    """Fails the round, unless the refusal ends by itself, or another worker has advanced the round meanwhile.

    Args: longest: how long the round may have its present status.
    """
    passes = error.status == 429 or error.code in _PASSING_CODES
    if passes and not _has_waited(of, longest):
        log.info("a round waits", round_id=of.pk, code=error.code)
        return False
    return _fail(of, error.code or "invalid_request", error.message)


def _has_waited(of: LoopRound, longest: dt.timedelta) -> bool:
    return timezone.now() - of.changed_at > longest


def _fail(of: LoopRound, code: str, message: str) -> bool:
    return transition(of, Status.FAILED, reason={"code": code, "message": message})


_STEPS: Mapping[Status, Callable[[LoopRound], bool]] = {
    Status.CAPTURING: _capture,
    Status.DISTILLING: _follow_pipeline,
    Status.TRAINING: _follow_pipeline,
    Status.EVALUATING: _follow_pipeline,
    Status.GATING: _gate,
    Status.ROLLING_OUT: _follow_rollout,
}
