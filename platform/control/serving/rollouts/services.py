"""Services that write rollouts. `rollouts_reconcile` makes the transitions of a rollout's status:

starting ──canary ready──> canary ──decided──> promoting ──the deployment has restarted──> promoted
    └───────────────────────┴──────────────────────┴──> rolled_back

The canary is a deployment that the API does not list, with a separate process. The gateway sends a share of the
requests to it. While the deployment itself restarts with the new speculator, the canary answers all requests.
"""

import datetime as dt
from collections.abc import Mapping

import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from control.core.api.errors import ApiError
from control.models.catalog.models import Speculator
from control.serving.deployments.figures import figures_since
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import has_crashed, has_given_up
from control.serving.deployments.services import (
    canary_create,
    canary_share,
    deployment_delete,
    deployment_update,
    output_change_refuse,
)
from control.serving.rollouts.decision import Decision, Figures, Terms, decide
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.selectors import ACTIVE, rollouts_active
from control.tenants.audit.record import audited
from control.tenants.events.services import event_record
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)
Status, State = Rollout.Status, Deployment.State


@audited("rollout.create")
def rollout_create(
    *,
    deployment: Deployment,
    speculator: Speculator,
    share_percent: int,
    terms: Terms,
    max_seconds: int,
    allow_output_change: bool = False,
) -> Rollout:
    """Creates the rollout and its canary.

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
            return Rollout.objects.create(
                organization=deployment.organization,
                deployment=deployment,
                canary=canary_create(deployment=deployment, speculator=speculator),
                speculator=speculator,
                previous=deployment.speculator,
                share_percent=share_percent,
                min_requests=terms.min_requests,
                max_acceptance_drop=terms.max_acceptance_drop,
                max_error_rate=terms.max_error_rate,
                max_seconds=max_seconds,
            )
    except IntegrityError as error:
        message = "This deployment already has an active rollout: cancel it, or wait until it ends."
        raise ApiError(409, message, "rollout_active", "deployment_id") from error


@audited("rollout.cancel")
def rollout_cancel(*, rollout: Rollout) -> bool:
    """Goes back to the previous speculator. Raises: ApiError: 400, the rollout is already decided."""
    if rollout.status in (Status.STARTING, Status.CANARY) and _roll_back(rollout, "cancelled", "It was cancelled."):
        return True
    raise ApiError(400, f"Cannot cancel a rollout with status '{rollout.status}'.", "invalid_rollout_status")


def rollouts_reconcile() -> None:
    """Advances all rollouts. All workers call this every few seconds; a compare-and-swap lets only one of them make
    each transition."""
    for rollout in rollouts_active():
        try:
            with as_tenant(rollout.organization_id, rollout.deployment.project_id):
                _STEPS[Status(rollout.status)](rollout)
        except Exception:  # an error in one rollout must not stop the others
            log.exception("could not reconcile a rollout", rollout_id=rollout.pk)


def _start(rollout: Rollout) -> None:
    if _abort_if_obsolete(rollout):
        return
    if rollout.canary.state == State.READY:
        with transaction.atomic():
            before = rollout.deployment.num_failed
            if _move(rollout, Status.CANARY, started_at=timezone.now(), failed_before=before):
                canary_share(canary=rollout.canary, percent=rollout.share_percent)


def _watch(rollout: Rollout) -> None:
    if _abort_if_obsolete(rollout):
        return
    assert rollout.started_at is not None
    canary = _figures(rollout.canary, rollout.started_at)
    stable = _figures(rollout.deployment, rollout.started_at, failed_before=rollout.failed_before)
    terms = Terms(
        min_requests=rollout.min_requests,
        max_acceptance_drop=rollout.max_acceptance_drop,
        max_error_rate=rollout.max_error_rate,
    )
    decision = decide(canary, stable, terms)
    if decision is None and timezone.now() - rollout.started_at > dt.timedelta(seconds=rollout.max_seconds):
        message = (
            f"The canary answered only {canary.num_requests} of {rollout.min_requests} requests "
            f"within {rollout.max_seconds} seconds."
        )
        decision = Decision(False, "too_few_requests", message)
    if decision is None:
        return
    figures = {"canary": canary.as_json(), "stable": stable.as_json()}
    if decision.is_promoted:
        _promote(rollout, decision, figures)
    else:
        _roll_back(rollout, decision.code, decision.message, figures=figures)


def _finish(rollout: Rollout) -> None:
    deployment = rollout.deployment
    if deployment.deleted_at is not None or deployment.speculator_id != rollout.speculator_id:
        _roll_back(rollout, "superseded", "The deployment was changed during the rollout.")
    elif deployment.state == State.FAILED or has_given_up(deployment):
        with transaction.atomic():
            if _roll_back(rollout, "deployment_failed", "The deployment did not start with the new speculator."):
                deployment_update(deployment=deployment, speculator=rollout.previous, allow_output_change=True)
    elif deployment.state in (State.READY, State.SLEEPING) and deployment.observed_generation == deployment.generation:
        with transaction.atomic():
            if _move(rollout, Status.PROMOTED, finished_at=timezone.now()):
                deployment_delete(deployment=rollout.canary)


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


def _figures(deployment: Deployment, since: dt.datetime, *, failed_before: int = 0) -> Figures:
    measured = figures_since(deployment, since)
    return Figures(
        num_requests=measured.num_requests,
        num_failed=deployment.num_failed - failed_before,
        acceptance_length=measured.acceptance_length,
    )


@transaction.atomic
def _promote(rollout: Rollout, decision: Decision, figures: Mapping[str, object]) -> None:
    reason = {"code": decision.code, "message": decision.message}
    if _move(rollout, Status.PROMOTING, reason=reason, figures=figures):
        canary_share(canary=rollout.canary, percent=100)
        deployment_update(deployment=rollout.deployment, speculator=rollout.speculator, allow_output_change=True)


@transaction.atomic
def _roll_back(rollout: Rollout, code: str, message: str, **values: object) -> bool:
    reason = {"code": code, "message": message}
    moved = _move(rollout, Status.ROLLED_BACK, reason=reason, finished_at=timezone.now(), **values)
    if moved:
        deployment_delete(deployment=rollout.canary)
    return moved


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


_STEPS = {Status.STARTING: _start, Status.CANARY: _watch, Status.PROMOTING: _finish}
