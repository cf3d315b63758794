"""Puts engines to sleep and wakes them, in threads, because an engine needs seconds to write or read its weights.

An engine refuses to sleep if it was used within the idle time. A request that arrives after the supervisor's decision
therefore keeps the engine awake. Only health checks tell the supervisor whether an engine sleeps, because gateways wake
engines too.
"""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
import structlog
from django.utils import timezone

from control.serving.deployments.engine_tls import EngineAddress
from control.serving.deployments.health import Load
from control.serving.deployments.models import Replica
from control.serving.deployments.observations import replica_load
from control.serving.deployments.scaling import may_sleep, scaling_of

CHANGE_TIMEOUT_SECONDS = 30.0  # after this time, the engine continues, and health checks show whether it sleeps
RETRY_SECONDS = 5.0
NUM_THREADS = 4  # changes that run at a time; each of them reads or writes gigabytes

log = structlog.get_logger(__name__)


def sleep_pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="sleep")


@dataclass(slots=True)
class SleepWatch:
    """Puts one engine process to sleep or wakes it, as the deployment's scaling options require."""

    _is_supported: bool = True
    _pending: "Future[str] | None" = None
    _next_at: float = 0.0

    def poll(self, pool: ThreadPoolExecutor, client: httpx2.Client, replica: Replica, load: Load) -> None:
        """Starts a change if one is due. The supervisor calls this after each good health check.

        Args: load: at the health check.
        """
        deployment, now = replica.deployment, timezone.now()
        if deployment.scaling is not None:
            replica_load(replica=replica, load=load)
        idle_seconds = scaling_of(deployment).scale_to_zero_seconds if may_sleep(deployment, now=now) else None
        if self._pending is not None:
            if not self._pending.done():
                return
            self._end(replica, self._pending.result())
        if load.is_asleep != (idle_seconds is None) or not self._is_supported or time.monotonic() < self._next_at:
            return
        path = "/wake" if idle_seconds is None else f"/sleep?idle_seconds={idle_seconds}"
        if replica.port is not None:
            address = replica.supervised_address
            self._pending = pool.submit(_change, client, address, path, replica.operator_token)

    def _end(self, replica: Replica, code: str) -> None:
        """Handles the end of a change. Args: code: the code of the error; empty: the change was made."""
        self._pending = None
        if code not in ("", "engine_in_use"):
            self._next_at = time.monotonic() + RETRY_SECONDS
            self._is_supported = code != "sleep_not_supported"
            log.warning("the engine could not be put to sleep or woken", replica=str(replica), code=code)


def _change(client: httpx2.Client, address: EngineAddress, path: str, operator_token: str) -> str:
    """Requests the change from the engine. Returns the code of the error; empty if there is none."""
    headers = {"Authorization": f"Bearer {operator_token}"}
    try:
        response = client.post(
            address.url(path), headers=headers, timeout=CHANGE_TIMEOUT_SECONDS, extensions=address.extensions
        )
        return "" if response.status_code == 200 else str(response.json()["error"]["code"])
    except (httpx2.HTTPError, ValueError, KeyError, TypeError) as error:
        return type(error).__name__
