"""Services that write rollouts. `rollouts_reconcile` makes the transitions of a rollout's status:

starting ──canary ready──> canary ──decided──> promoting ──restarted──> watching ──time over──> promoted
    └───────────────────────┴──────────────────────┴───────────────────────┴──> rolled_back

The canary is a deployment that the API does not list, with a separate process. The gateway sends a share of the
requests to it or, in mode `shadow`, copies of a share of the requests, whose answers it compares and discards. While
the deployment itself restarts with the new speculator, the canary answers all requests. Without `watch_seconds`, a
rollout is promoted as soon as the deployment has restarted.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from control.billing.spending.quoted import quote_of, quoted_use_add
from control.core.api.errors import ApiError
from control.models.catalog.drafters import changes_output
from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import has_crashed, has_given_up
from control.serving.deployments.services import (
    canary_create,
    canary_share,
    deployment_delete,
    deployment_update,
    output_change_refuse,
)
from control.serving.rollouts.decision import UNDECIDED, Decision, Evidence, Terms, decide, decide_at_end, gates_of
from control.serving.rollouts.evidence import Side, evidence_of, evidence_start
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.selectors import ACTIVE, rollouts_active
from control.serving.rollouts.verdicts import verdict_of
from control.tenants.audit.record import audited
from control.tenants.events.services import event_record
from control.tenants.row_security.each import each_as_tenant

log = structlog.get_logger(__name__)
Status, State = Rollout.Status, Deployment.State
CANCELLABLE = (Status.STARTING, Status.CANARY, Status.WATCHING)


@audited("rollout.create")
def rollout_create(
    *,
    deployment: Deployment,
    speculator: Speculator,
    share_percent: int,
    terms: Terms,
    max_seconds: int,
    allow_output_change: bool = False,
    mode: str = Rollout.Mode.CANARY,
    watch_seconds: int = 0,
) -> Rollout:
    """Creates the rollout and its canary.

    Args:
        mode: of `Rollout.Mode`.
        watch_seconds: how long the promoted speculator is compared with the previous one; 0: not at all.
    Raises: ApiError: 409, the deployment is not running or has an active rollout, the speculator does not fit, or
        answers would change and `allow_output_change` is false.
    """
    if deployment.state not in (State.READY, State.SLEEPING, State.DEGRADED):
        message = (
            f"The deployment is {deployment.state}: a rollout needs a deployment that is ready, sleeping or degraded."
        )
        raise ApiError(409, message, "deployment_not_ready", "deployment_id")
    if deployment.speculator_id == speculator.pk:
        message = "The deployment already serves with this speculator."
        raise ApiError(409, message, "nothing_to_roll_out", "speculator_id")
    if not allow_output_change:
        output_change_refuse(deployment, speculator)
    try:
        with transaction.atomic():
            canary = canary_create(deployment=deployment, speculator=speculator)
            if (quote_id := quote_of(deployment.pk)) is not None:  # its device time counts towards the same cap
                quoted_use_add(organization_id=deployment.organization_id, quote_id=quote_id, object_id=canary.pk)
            return Rollout.objects.create(
                organization=deployment.organization,
                deployment=deployment,
                canary=canary,
                speculator=speculator,
                previous=deployment.speculator,
                share_percent=share_percent,
                **asdict(terms),
                max_seconds=max_seconds,
                mode=mode,
                watch_seconds=watch_seconds,
            )
    except IntegrityError as error:
        message = "This deployment already has an active rollout: cancel it, or wait until it ends."
        raise ApiError(409, message, "rollout_active", "deployment_id") from error


@audited("rollout.cancel")
def rollout_cancel(*, rollout: Rollout) -> bool:
    """Cancels the rollout, so that the deployment serves with the previous speculator.

    Raises: ApiError: 400, the rollout is already decided.
    """
    if rollout.status in CANCELLABLE and _roll_back(rollout, "cancelled", "It was cancelled."):
        return True
    raise ApiError(400, f"Cannot cancel a rollout with status '{rollout.status}'.", "invalid_rollout_status")


def rollouts_reconcile() -> None:
    """Advances all rollouts. All workers call this every few seconds; a compare-and-swap lets only one of them make
    each transition."""
    each_as_tenant(
        rollouts_active(),
        lambda rollout: _STEPS[Status(rollout.status)](rollout),
        failure="could not reconcile a rollout",
        name="rollout_id",
        project_of=lambda rollout: rollout.deployment.project_id,
    )


def _start(rollout: Rollout) -> None:
    if _abort_if_obsolete(rollout):
        return
    if rollout.canary.state == State.READY:
        with transaction.atomic():
            if _move(rollout, Status.CANARY, started_at=timezone.now()):
                evidence_start(rollout, Side.CANDIDATE, Side.STABLE)
                if rollout.mode == Rollout.Mode.CANARY:
                    canary_share(canary=rollout.canary, percent=rollout.share_percent)


def _try(rollout: Rollout) -> None:
    """Decides about a rollout in its trial."""
    if _abort_if_obsolete(rollout):
        return
    assert rollout.started_at is not None
    if rollout.trial is None:
        evidence_start(rollout, Side.CANDIDATE, Side.STABLE)  # an earlier release may have begun the trial
    evidence, terms = evidence_of(rollout), Terms.of(rollout)
    candidate, stable = evidence[Side.CANDIDATE], evidence[Side.STABLE]
    # A speculator that contains an adapter changes answers, and the customer has allowed that.
    compares = rollout.mode == Rollout.Mode.SHADOW and not changes_output(rollout.previous, rollout.speculator)
    gates = gates_of(candidate, stable, terms, compares_answers=compares)
    decision = decide(candidate, gates, terms)
    if decision.kind == "undecided" and (limit := _limit_reached(rollout, candidate)):
        decision = decide_at_end(candidate, gates, terms, limit)
    trial = verdict_of(rollout, phase="trial", candidate=candidate, stable=stable, gates=gates, decision=decision)
    if decision.kind == "undecided":
        _note(rollout, trial=trial)
        return
    figures = {"canary": _figures(candidate), "stable": _figures(stable)}
    if decision.kind == "promote":
        _promote(rollout, decision, figures=figures, trial=trial)
    else:
        _roll_back(rollout, decision.code, decision.message, figures=figures, trial=trial)


def _limit_reached(rollout: Rollout, candidate: Evidence) -> str | None:
    assert rollout.started_at is not None
    if timezone.now() - rollout.started_at > dt.timedelta(seconds=rollout.max_seconds):
        return f"{rollout.max_seconds} seconds"
    # Loops and the previous release set only `min_requests`, which may exceed the default of `max_requests`.
    max_requests = max(rollout.max_requests, rollout.min_requests)
    if candidate.num_requests + candidate.num_failed >= max_requests:
        return f"{max_requests} requests"
    return None


def _finish(rollout: Rollout) -> None:
    deployment = rollout.deployment
    if _is_superseded(rollout):
        _roll_back(rollout, "superseded", "The deployment was changed during the rollout.")
    elif deployment.desired_state == Deployment.Desired.STOPPED:  # otherwise, the canary would run for ever
        _roll_back(rollout, "deployment_stopped", "The deployment was stopped.")
    elif deployment.state == State.FAILED or has_given_up(deployment):
        _roll_back(rollout, "deployment_failed", "The deployment did not start with the new speculator.")
    elif deployment.state in (State.READY, State.SLEEPING) and deployment.observed_generation == deployment.generation:
        now = timezone.now()
        with transaction.atomic():
            if not rollout.watch_seconds:
                moved = _move(rollout, Status.PROMOTED, finished_at=now)
            elif moved := _move(rollout, Status.WATCHING, watched_at=now):
                evidence_start(rollout, Side.PROMOTED)
            if moved:
                deployment_delete(deployment=rollout.canary)


def _keep_watching(rollout: Rollout) -> None:
    """Compares the promoted speculator with the evidence of the previous one."""
    assert rollout.watched_at is not None
    if _is_superseded(rollout):
        _roll_back(rollout, "superseded", "The deployment was changed during the rollout.")
        return
    if rollout.deployment.state == State.FAILED or has_given_up(rollout.deployment):
        _roll_back(rollout, "deployment_failed", "The deployment failed with the new speculator.")
        return
    evidence, terms = evidence_of(rollout), Terms.of(rollout)
    promoted, stable = evidence[Side.PROMOTED], evidence[Side.STABLE]
    gates = gates_of(promoted, stable, terms)
    decision = decide(promoted, gates, terms)
    is_over = timezone.now() - rollout.watched_at > dt.timedelta(seconds=rollout.watch_seconds)
    if decision.kind != "roll_back":
        message = f"No gate failed within {rollout.watch_seconds} seconds after the promotion."
        decision = Decision("promote", "kept", message) if is_over else UNDECIDED
    watch = verdict_of(rollout, phase="watch", candidate=promoted, stable=stable, gates=gates, decision=decision)
    if decision.kind == "roll_back":
        _roll_back(rollout, decision.code, decision.message, watch=watch)
    elif decision.kind == "promote":
        _move(rollout, Status.PROMOTED, finished_at=timezone.now(), watch=watch)
    else:
        _note(rollout, watch=watch)


def _is_superseded(rollout: Rollout) -> bool:
    """Whether the deployment no longer serves the promoted speculator, because the customer has changed it."""
    deployment = rollout.deployment
    return deployment.deleted_at is not None or deployment.speculator_id != rollout.speculator_id


def _abort_if_obsolete(rollout: Rollout) -> bool:
    """Rolls back if the deployment was stopped or changed, or if the canary crashed. Returns whether it did."""
    deployment, canary = rollout.deployment, rollout.canary
    if deployment.deleted_at is not None or deployment.desired_state == Deployment.Desired.STOPPED:
        _roll_back(rollout, "deployment_stopped", "The deployment was stopped.")
    elif deployment.speculator_id != rollout.previous_id:
        _roll_back(rollout, "superseded", "The deployment was given another speculator during the rollout.")
    elif canary.state == State.FAILED or has_crashed(canary):
        _roll_back(rollout, "canary_crashed", str((canary.error or {}).get("message", "The canary's process ended.")))
    else:
        return False
    return True


def _figures(evidence: Evidence) -> dict[str, Any]:
    return {
        "num_requests": evidence.num_requests,
        "num_failed": evidence.num_failed,
        "acceptance_length": evidence.acceptance_length,
        "error_rate": evidence.error_rate,
    }


@transaction.atomic
def _promote(rollout: Rollout, decision: Decision, **values: object) -> None:
    reason = {"code": decision.code, "message": decision.message}
    if _move(rollout, Status.PROMOTING, reason=reason, **values):
        canary_share(canary=rollout.canary, percent=100)
        deployment_update(deployment=rollout.deployment, speculator=rollout.speculator, allow_output_change=True)


@transaction.atomic
def _roll_back(rollout: Rollout, code: str, message: str, **values: object) -> bool:
    """Ends the rollout. If the deployment serves the new speculator by now, it gets the previous one again."""
    reason = {"code": code, "message": message}
    moved = _move(rollout, Status.ROLLED_BACK, reason=reason, finished_at=timezone.now(), **values)
    if not moved:
        return False
    if rollout.canary.deleted_at is None:
        deployment_delete(deployment=rollout.canary)
    if rollout.status in (Status.PROMOTING, Status.WATCHING):
        # Locked, so that a change that the customer makes at this moment is not undone.
        deployment = Deployment.objects.select_for_update().get(pk=rollout.deployment_id)
        if deployment.deleted_at is None and deployment.speculator_id == rollout.speculator_id:
            deployment_update(deployment=deployment, speculator=rollout.previous, allow_output_change=True)
    return True


def _note(rollout: Rollout, **values: Mapping[str, Any]) -> None:
    """Stores the evidence so far, which the API returns."""
    if any(getattr(rollout, name) != value for name, value in values.items()):
        Rollout.objects.filter(pk=rollout.pk, status=rollout.status).update(**values)


def _move(rollout: Rollout, to: Rollout.Status, **values: object) -> bool:
    """Sets the status in one compare-and-swap and records the event. Returns False if another process was faster."""
    assert rollout.status in ACTIVE, "a rollout that has ended does not change"
    with transaction.atomic():
        moved = Rollout.objects.filter(pk=rollout.pk, status=rollout.status).update(status=to, **values)
        if moved:
            event_record(
                organization_id=rollout.organization_id,
                project_id=rollout.deployment.project_id,
                type=f"rollout.{to.value}",
                object_id=rollout.pk,
            )
    return bool(moved)


_STEPS = {
    Status.STARTING: _start,
    Status.CANARY: _try,
    Status.PROMOTING: _finish,
    Status.WATCHING: _keep_watching,
}
