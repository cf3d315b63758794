"""Writes the supervisors' observations into the rows of replicas, and derives the deployment's state from them.

Each write locks the deployment and names the fence of the supervisor's claim; it changes nothing if another supervisor
has claimed the replica since. Pipelines that wait for the deployment receive `deployment_settled`; if that signal is
lost, the reconciler of pipelines finds the same state.
"""

import datetime as dt
from collections.abc import Sequence
from functools import partial
from typing import Any

from django.db import transaction
from django.utils import timezone

from control.serving.deployments.health import Load
from control.serving.deployments.metering import endpoint_meter_end
from control.serving.deployments.models import AVAILABLE, UP, Deployment, Replica
from control.serving.deployments.signals import deployment_settled
from control.serving.deployments.states import RUNNING_STATES, State, transition

CRASH_WINDOW_SECONDS = 600.0
MAX_CRASHES = 5
MAX_BACKOFF_SECONDS = 60.0
DEVICE_WAIT_SECONDS = 2.0  # between two searches for a free device
USE_RECORDED_SECONDS = 1.0  # `used_at` is updated if the stored time is too old by this much or more
NO_PROCESS: dict[str, Any] = {
    "pid": None, "process_started": "", "host": "", "port": None, "token": "", "operator_token": "", "certificate": "",
    "device": "", "node": "", "num_open": 0,
}  # fmt: skip
NO_DEVICE_FACTS: dict[str, Any] = {"device_kind": "", "hour_nanousd": None}  # resets the last device and its price


@transaction.atomic
def replica_launched(*, replica: Replica, **process: Any) -> bool:
    """Records the process that was started for the generation of `replica.deployment`.

    Args: process: values of the fields in `NO_PROCESS`, `launcher`, and what is known of the device.
    Returns: False if the deployment or the claim has changed meanwhile; the caller must then end the process.
    """
    deployment = _lock(replica)
    if not _is_wanted(deployment, replica) or deployment.generation != replica.deployment.generation:
        return False
    return _write(
        deployment,
        replica,
        state=Replica.State.PROVISIONING,
        generation=deployment.generation,
        metered_until=timezone.now(),
        blocked=None,
        **{**NO_DEVICE_FACTS, **process},
    )


@transaction.atomic
def replica_blocked(*, replica: Replica, code: str, message: str) -> None:
    """Records that the replica waits for a device, and when the supervisor looks for one again.

    There is no effect if the deployment has changed.
    """
    deployment = _lock(replica)
    if deployment.generation == replica.deployment.generation and _is_wanted(deployment, replica):
        not_before = timezone.now() + dt.timedelta(seconds=DEVICE_WAIT_SECONDS)
        _write(deployment, replica, blocked={"code": code, "message": message}, not_before=not_before)


@transaction.atomic
def replica_observe(*, replica: Replica, healthy: bool, load: Load | None = None) -> bool:
    """Records the result of a health check. Returns whether the state changed.

    Args: load: None: the load is unknown, and the process is awake.
    Effects: when a replica falls asleep, its device time until then is recorded.
    """
    if not healthy:
        if replica.state not in AVAILABLE:  # a process that was never ready is not degraded: it is still starting
            return False
        return _write(_lock(replica), replica, state=Replica.State.DEGRADED)
    is_asleep = load is not None and load.is_asleep
    to = Replica.State.SLEEPING if is_asleep else Replica.State.READY
    if replica.state == to:
        return False
    deployment, now = _lock(replica), timezone.now()
    if deployment.generation != replica.generation or not _is_wanted(deployment, replica):
        return False
    changes: dict[str, Any] = {"state": to, "error": None, "healthy_at": now}
    if replica.metered_until is None and not is_asleep:
        changes["metered_until"] = now
    if not _write(deployment, replica, **changes):
        return False
    if is_asleep:
        endpoint_meter_end(replica=replica)
    return True


def replica_load(*, replica: Replica, load: Load) -> None:
    """Records how much a replica is used, for deployments that are scaled."""
    used_at = timezone.now() - dt.timedelta(seconds=load.idle_seconds)
    is_recorded = replica.used_at is not None and used_at - replica.used_at < dt.timedelta(seconds=USE_RECORDED_SECONDS)
    if replica.num_open != load.num_open or not is_recorded:
        held = Replica.objects.filter(pk=replica.pk, fence=replica.fence)
        held.update(num_open=load.num_open, used_at=used_at)


@transaction.atomic
def replica_crashed(*, replica: Replica, code: str, message: str, log: str = "") -> None:
    """Records that a process that should run has ended or could not be started; schedules a retry or gives up.

    There is no effect if the deployment has changed: the end of the process is then recorded by `replica_ended`.

    Args: log: the end of the engine's log, for operators.
    """
    deployment = _lock(replica)
    if deployment.generation != replica.deployment.generation:
        return
    now = timezone.now()
    earliest = now.timestamp() - CRASH_WINDOW_SECONDS
    crashes = [*(at for at in replica.crashes if at > earliest), now.timestamp()]
    not_before: dt.datetime | None = None
    if len(crashes) < MAX_CRASHES:
        to, not_before = Replica.State.PROVISIONING, now + dt.timedelta(seconds=backoff_seconds(len(crashes)))
        error = {"code": code, "message": message}
    else:
        to = Replica.State.FAILED
        message = f"{len(crashes)} crashes within 10 minutes. The last error: {message}"
        error = {"code": "crash_loop", "message": message}
    changes = {**NO_PROCESS, "crashes": crashes, "not_before": not_before, "error": {**error, "log": log}}
    changes["blocked"] = None
    if _write(deployment, replica, state=to, **changes):
        endpoint_meter_end(replica=replica)


def backoff_seconds(num_crashes: int) -> float:
    """Delay before the next start: 1, 2, 4 … 60 s after the first, second, third … crash within the window."""
    return min(MAX_BACKOFF_SECONDS, 2.0 ** (num_crashes - 1))


@transaction.atomic
def replica_draining(*, replica: Replica, is_forced: bool = False) -> bool:
    """Takes the replica out of the gateways' routing, before the supervisor ends its process.

    Args: is_forced: whether to do so even if another replica is not available.
    Returns: False if the process must continue to serve, because ready replicas are replaced one after another.
    """
    deployment = _lock(replica)
    if _is_wanted(deployment, replica) and replica.state in AVAILABLE and not is_forced:
        others = deployment.replicas.filter(number__lt=deployment.num_replicas).exclude(pk=replica.pk)
        if others.exclude(state__in=AVAILABLE).exists():
            return False
    return _write(deployment, replica, state=Replica.State.DRAINING, not_before=None)


@transaction.atomic
def replica_ended(*, replica: Replica) -> bool:
    """Records that a replica's drained process has ended, or that the replica has no process and needs none."""
    deployment = _lock(replica)
    to = Replica.State.PROVISIONING if _is_wanted(deployment, replica) else Replica.State.STOPPED
    if not _write(deployment, replica, state=to, healthy_at=None, blocked=None, **NO_PROCESS):
        return False
    endpoint_meter_end(replica=replica)
    if replica.number >= deployment.num_replicas:
        replica.delete()
    return True


def _is_wanted(deployment: Deployment, replica: Replica) -> bool:
    return deployment.state in RUNNING_STATES and replica.number < deployment.num_replicas


def _lock(replica: Replica) -> Deployment:
    """The lock makes concurrent supervisors of a deployment's replicas take turns. Raises: DoesNotExist."""
    return Deployment.objects.select_for_update().get(pk=replica.deployment_id)


def _write(deployment: Deployment, replica: Replica, **changes: Any) -> bool:
    """Changes a replica's row and derives the deployment's state, unless another supervisor has claimed the replica.

    Args: deployment: its row, which the caller has locked.
    Returns: whether the row was changed.
    """
    held = Replica.objects.filter(pk=replica.pk, fence=replica.fence)
    if not held.update(**changes, updated_at=timezone.now()):
        return False
    for name, value in changes.items():
        setattr(replica, name, value)
    _follow(deployment)
    return True


def _follow(deployment: Deployment) -> None:
    """Derives the deployment's state from its replicas and writes it."""
    replicas = list(deployment.replicas.order_by("number"))
    if deployment.state == State.STOPPING:
        if not any(replica.has_process for replica in replicas):
            transition(deployment, State.STOPPED, healthy_at=None)
        return
    if deployment.state not in RUNNING_STATES:
        return
    wanted = [replica for replica in replicas if replica.number < deployment.num_replicas]
    to = _state_of(wanted, num_wanted=deployment.num_replicas)
    errors = [replica.error for replica in wanted if replica.error is not None]
    changes: dict[str, Any] = {
        "observed_generation": min((replica.generation for replica in wanted), default=0),
        "error": None if to in (State.READY, State.SLEEPING) else next(map(_shown, errors), deployment.error),
    }
    if to == deployment.state:
        Deployment.objects.filter(pk=deployment.pk).update(**changes)
    elif transition(deployment, to, **changes) and to in (State.READY, State.SLEEPING, State.FAILED):
        transaction.on_commit(partial(deployment_settled.send, Deployment, deployment_id=deployment.pk))


def _shown(error: dict[str, str]) -> dict[str, str]:
    """The part of a replica's error that customers see."""
    return {"code": error["code"], "message": error["message"]}


def _state_of(wanted: Sequence[Replica], *, num_wanted: int) -> Deployment.State:
    states = [replica.state for replica in wanted]
    if len(wanted) == num_wanted and all(state in AVAILABLE for state in states):
        return State.READY if Replica.State.READY in states else State.SLEEPING
    if any(state in UP for state in states):
        has_failure = any(replica.error is not None or replica.state == Replica.State.DEGRADED for replica in wanted)
        return State.DEGRADED if has_failure else State.PROVISIONING
    return State.FAILED if states and all(state == Replica.State.FAILED for state in states) else State.PROVISIONING
