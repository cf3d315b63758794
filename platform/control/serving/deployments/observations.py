"""What the supervisor found, written into the row. Each write names the generation it is about.

Pipelines that wait for the deployment are told when it became ready or failed; should that be lost, the reconciler
of pipelines finds the same.
"""

import datetime as dt
from functools import partial

import structlog
from django.db import transaction
from django.utils import timezone

from control.serving.deployments.models import Deployment
from control.serving.deployments.states import State, transition
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.stages import pipeline_advance

log = structlog.get_logger(__name__)

CRASH_WINDOW_SECONDS = 600.0
MAX_CRASHES = 5
MAX_BACKOFF_SECONDS = 60.0
NO_PROCESS: dict[str, object] = {"pid": None, "process_started": "", "port": None, "token": ""}


@transaction.atomic
def deployment_launched(*, deployment: Deployment, pid: int, process_started: str, port: int, token: str) -> bool:
    """A process was started for the generation of `deployment`. False: the wish has changed, the process must go."""
    return transition(
        deployment,
        State.PROVISIONING,
        found_for=deployment.generation,
        pid=pid,
        process_started=process_started,
        port=port,
        token=token,
        observed_generation=deployment.generation,
    )


@transaction.atomic
def deployment_observe(*, deployment: Deployment, healthy: bool) -> bool:
    """A health check of the process in the row. Returns whether the state changed."""
    if not healthy:  # one that was never ready is not degraded: it is still starting
        return deployment.state == State.READY and transition(
            deployment, State.DEGRADED, found_for=deployment.generation
        )
    if deployment.state == State.READY:
        return False
    moved = transition(deployment, State.READY, found_for=deployment.observed_generation, error=None)
    if moved:
        transaction.on_commit(partial(_tell_pipelines, deployment.pk))
    return moved


@transaction.atomic
def deployment_crashed(*, deployment: Deployment, code: str, message: str) -> None:
    """The process is gone, or could not be started, though it should run: try again later, or give up."""
    now = timezone.now()
    earliest = now.timestamp() - CRASH_WINDOW_SECONDS
    crashes = [*(at for at in deployment.crashes if at > earliest), now.timestamp()]
    if len(crashes) < MAX_CRASHES:
        to, not_before = State.PROVISIONING, now + dt.timedelta(seconds=backoff_seconds(len(crashes)))
        error = {"code": code, "message": message}
    else:
        to, not_before = State.FAILED, None
        error = {"code": "crash_loop", "message": f"{len(crashes)} crashes within 10 minutes. The last: {message}"}
    found = {**NO_PROCESS, "crashes": crashes, "not_before": not_before, "error": error}
    if transition(deployment, to, found_for=deployment.generation, **found) and to is State.FAILED:
        transaction.on_commit(partial(_tell_pipelines, deployment.pk))


def backoff_seconds(num_crashes: int) -> float:
    """1, 2, 4 … 60 s after the first, second, third … crash within the window."""
    return min(MAX_BACKOFF_SECONDS, 2.0 ** (num_crashes - 1))


@transaction.atomic
def deployment_draining(*, deployment: Deployment) -> bool:
    """The process is about to be taken down and to come back: out of the gateway's routing first."""
    return transition(deployment, State.PROVISIONING, found_for=deployment.generation, not_before=None)


@transaction.atomic
def deployment_drained(*, deployment: Deployment) -> bool:
    """The process that was taken down is gone; another one is to come."""
    return transition(deployment, State.PROVISIONING, found_for=deployment.generation, **NO_PROCESS)


@transaction.atomic
def deployment_stopped(*, deployment: Deployment) -> bool:
    """The process is gone, as wished."""
    return transition(deployment, State.STOPPED, found_for=deployment.generation, **NO_PROCESS, healthy_at=None)


def _tell_pipelines(deployment_id: str) -> None:
    for pipeline in Pipeline.objects.filter(deployment=deployment_id, status=Pipeline.Status.DEPLOYING):
        try:
            pipeline_advance(pipeline=pipeline)
        except Exception:  # boundary: a pipeline's trouble must not end the supervisor
            log.exception("pipeline did not advance", pipeline=pipeline.pk)
