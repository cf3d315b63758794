"""Services that write the settings of loops on a customer's request, and stop rounds. `rounds` advances rounds."""

from typing import Any

from django.db import transaction

from control.billing.usage.services import usage_attribute
from control.core.api.errors import ApiError
from control.serving.captures.selectors import capture_of
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_lock
from control.serving.rollouts.services import rollout_cancel
from control.tenants.audit.record import audited
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.selectors import round_fresh, round_running
from control.workflows.loops.state import ACTIVE, Status, transition
from control.workflows.pipelines.services import pipeline_cancel
from control.workflows.pipelines.state import ACTIVE as PIPELINE_ACTIVE


@audited("loop.set")
@transaction.atomic
def loop_set(*, deployment: Deployment, **settings: Any) -> Loop:
    """Creates the loop, or replaces its settings. A running round keeps the settings with which it began.

    Args: settings: columns of `Loop`, checked by `requests`.
    Effects: if `enabled` is false, the running round is stopped.
    Raises: ApiError: 404, the requests to the deployment are not kept.
    """
    deployment_lock(deployment)  # two requests at once would both create a loop
    capture_of(deployment)
    loop = Loop.objects.filter(deployment=deployment).first()
    if loop is not None:
        return _change(loop, settings)
    loop = Loop.objects.create(
        organization=deployment.organization, project_id=deployment.project_id, deployment=deployment, **settings
    )
    usage_attribute(job_id=loop.pk, organization_id=loop.organization_id)
    return loop


@audited("loop.update")
@transaction.atomic
def loop_update(*, loop: Loop, **changes: Any) -> Loop:
    """Changes the given columns. Effects: if `enabled` becomes false, the running round is stopped."""
    return _change(loop, changes)


@audited("loop.delete")
@transaction.atomic
def loop_delete(*, loop: Loop) -> None:
    """Stops the running round and deletes the settings. The rounds stay."""
    Loop.objects.select_for_update().get(pk=loop.pk)  # no round begins until the transaction ends
    _stop_running(loop, "loop_deleted", "The loop was deleted.")
    loop.delete()


def _change(loop: Loop, changes: dict[str, Any]) -> Loop:
    locked = Loop.objects.select_for_update().get(pk=loop.pk)
    Loop.objects.filter(pk=locked.pk).update(**changes, blocked=None)
    loop.refresh_from_db()
    if not loop.enabled:
        _stop_running(loop, "loop_disabled", "The loop was switched off.")
    return loop


def _stop_running(loop: Loop, code: str, message: str) -> None:
    running = round_running(loop.deployment)
    if running is not None:
        round_stop(of=running, code=code, message=message)


def round_stop(*, of: LoopRound, code: str, message: str) -> bool:
    """Stops a round, its pipeline and its rollout, in one transaction. The results so far are kept.

    Returns: False if the round has ended, or if its rollout has been decided: the deployment then already starts with
        the new speculator, and the round ends with the rollout.
    """
    while True:
        of = round_fresh(of)
        if of.status not in ACTIVE:
            return False
        try:
            with transaction.atomic():
                if transition(of, Status.STOPPED, reason={"code": code, "message": message}):
                    _stop_work(of)
                    return True
        except ApiError:  # the rollout has been decided
            return False
        # Another process changed the status meanwhile: try again.


def _stop_work(of: LoopRound) -> None:
    """Raises: ApiError: 400, the rollout can no longer be cancelled."""
    if of.rollout is not None:
        rollout_cancel(rollout=of.rollout)
    elif of.pipeline is not None and of.pipeline.status in PIPELINE_ACTIVE:
        try:
            pipeline_cancel(pipeline=of.pipeline)
        except ApiError:  # it has ended meanwhile
            return
