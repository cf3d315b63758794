"""Writes the supervisor's observations into the deployment's row. Each write names the generation that was observed.

Pipelines that wait for the deployment receive `deployment_settled`; if that signal is lost, the reconciler of pipelines
finds the same state.
"""

import datetime as dt
from functools import partial

from django.db import transaction
from django.utils import timezone

from control.serving.deployments.metering import endpoint_meter_end
from control.serving.deployments.models import Deployment
from control.serving.deployments.signals import deployment_settled
from control.serving.deployments.states import State, transition

CRASH_WINDOW_SECONDS = 600.0
MAX_CRASHES = 5
MAX_BACKOFF_SECONDS = 60.0
NO_PROCESS: dict[str, object] = {"pid": None, "process_started": "", "port": None, "token": "", "device": ""}


@transaction.atomic
def deployment_launched(
    *, deployment: Deployment, pid: int, process_started: str, port: int, token: str, device: str
) -> bool:
    """Records the process that was started for the generation of `deployment`.

    Returns: False if the generation has changed meanwhile; the caller must then end the process.
    """
    return transition(
        deployment,
        State.PROVISIONING,
        expected_generation=deployment.generation,
        pid=pid,
        process_started=process_started,
        port=port,
        token=token,
        device=device,
        observed_generation=deployment.generation,
        metered_until=timezone.now(),
    )


@transaction.atomic
def deployment_observe(*, deployment: Deployment, healthy: bool) -> bool:
    """Records the result of a health check. Returns whether the state changed."""
    if not healthy:  # a process that was never ready is not degraded: it is still starting
        return deployment.state == State.READY and transition(
            deployment, State.DEGRADED, expected_generation=deployment.generation
        )
    if deployment.state == State.READY:
        return False
    moved = transition(deployment, State.READY, expected_generation=deployment.observed_generation, error=None)
    if moved:
        transaction.on_commit(partial(deployment_settled.send, Deployment, deployment_id=deployment.pk))
    return moved


@transaction.atomic
def deployment_crashed(*, deployment: Deployment, code: str, message: str) -> None:
    """Records that a process that should run has ended or could not be started; schedules a retry or gives up."""
    now = timezone.now()
    earliest = now.timestamp() - CRASH_WINDOW_SECONDS
    crashes = [*(at for at in deployment.crashes if at > earliest), now.timestamp()]
    if len(crashes) < MAX_CRASHES:
        to, not_before = State.PROVISIONING, now + dt.timedelta(seconds=backoff_seconds(len(crashes)))
        error = {"code": code, "message": message}
    else:
        to, not_before = State.FAILED, None
        message = f"{len(crashes)} crashes within 10 minutes. The last error: {message}"
        error = {"code": "crash_loop", "message": message}
    changes = {**NO_PROCESS, "crashes": crashes, "not_before": not_before, "error": error}
    if not transition(deployment, to, expected_generation=deployment.generation, **changes):
        return
    endpoint_meter_end(deployment=deployment)
    if to is State.FAILED:
        transaction.on_commit(partial(deployment_settled.send, Deployment, deployment_id=deployment.pk))


def backoff_seconds(num_crashes: int) -> float:
    """Delay before the next start: 1, 2, 4 … 60 s after the first, second, third … crash within the window."""
    return min(MAX_BACKOFF_SECONDS, 2.0 ** (num_crashes - 1))


@transaction.atomic
def deployment_draining(*, deployment: Deployment) -> bool:
    """Takes the deployment out of the gateway's routing, before the supervisor ends its process to replace it."""
    return transition(deployment, State.PROVISIONING, expected_generation=deployment.generation, not_before=None)


@transaction.atomic
def deployment_drained(*, deployment: Deployment) -> bool:
    """Records that the drained process has ended; the supervisor starts another one."""
    moved = transition(deployment, State.PROVISIONING, expected_generation=deployment.generation, **NO_PROCESS)
    if moved:
        endpoint_meter_end(deployment=deployment)
    return moved


@transaction.atomic
def deployment_stopped(*, deployment: Deployment) -> bool:
    """Records that the process of a stopping deployment has ended."""
    moved = transition(
        deployment, State.STOPPED, expected_generation=deployment.generation, **NO_PROCESS, healthy_at=None
    )
    if moved:
        endpoint_meter_end(deployment=deployment)
    return moved
