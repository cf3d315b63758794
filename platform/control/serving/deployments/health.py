"""Checks whether an endpoint can generate a token. Checks run in threads, so a check that hangs delays no other."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import httpx2

from control.serving.deployments.engine_tls import EngineAddress, EngineTransport
from control.serving.deployments.models import Replica

PROBE_TIMEOUT_SECONDS = 5.0
# An engine that has not been used for a minute is checked less often: a check costs the supervisor 0.5 ms of CPU time.
UNUSED_SECONDS, UNUSED_FACTOR = 60.0, 5


def engine_client() -> httpx2.Client:
    """Returns the client for all requests of a supervisor to its engines.

    Every request opens a connection, because a check has to show that the engine accepts connections.
    """
    return httpx2.Client(trust_env=False, timeout=PROBE_TIMEOUT_SECONDS, transport=EngineTransport())


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much an engine is used. The engine itself counts, so that requests of all gateways are included."""

    num_open: int
    idle_seconds: float  # 0 while a request runs or waits
    is_asleep: bool

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Self | None:
        """Reads the load from the engine's answer to GET /health. Returns None if the answer does not contain it."""
        load, sleep = facts.get("load"), facts.get("sleep")
        if load is None or sleep is None:
            return None
        return cls(
            num_open=load["open"], idle_seconds=load["idle_seconds"], is_asleep=sleep["state"] in ("asleep", "waking")
        )


@dataclass(frozen=True, slots=True)
class Check:
    started: float
    ended: float
    is_healthy: bool
    load: Load | None = None


def probe(client: httpx2.Client, address: EngineAddress, token: str) -> Check:
    started = time.monotonic()
    is_healthy, load = False, None
    try:
        headers = {"Authorization": f"Bearer {token}"}
        response = client.get(address.url("/health"), headers=headers, extensions=address.extensions)
        if response.status_code == 200:
            is_healthy, load = True, Load.of(response.json())
    except (httpx2.HTTPError, ValueError, LookupError, TypeError, AttributeError):
        # The last three are raised for JSON of another shape.
        is_healthy = False
    return Check(started, time.monotonic(), is_healthy, load)


@dataclass(slots=True)
class HealthWatch:
    """The health checks of one process, from its launch or adoption on."""

    interval_seconds: float
    failures: int = 0  # consecutive failed checks
    unhealthy_seconds: float = 0.0  # from the start of the first to the end of the last of these checks
    load: Load | None = None  # at the last good check
    _failing_since: float = 0.0
    _pending: "Future[Check] | None" = None
    _next_at: float = 0.0

    def poll(self, pool: ThreadPoolExecutor, client: httpx2.Client, replica: Replica) -> bool | None:
        """Starts a check when one is due. Returns the result of a check that ended since the last call, else None."""
        if self._pending is None:
            if time.monotonic() >= self._next_at:
                self._pending = pool.submit(probe, client, replica.supervised_address, replica.token)
            return None
        if not self._pending.done():
            return None
        check = self._pending.result()
        self._count(check)
        is_unused = check.load is not None and check.load.idle_seconds >= UNUSED_SECONDS
        interval_seconds = self.interval_seconds * (UNUSED_FACTOR if is_unused else 1)
        self._pending, self._next_at = None, time.monotonic() + interval_seconds
        return check.is_healthy

    def _count(self, check: Check) -> None:
        """Counts only the time of checks that ran: a check that waits for a thread says nothing about its engine."""
        if check.is_healthy:
            self.failures, self.unhealthy_seconds, self.load = 0, 0.0, check.load
            return
        if self.failures == 0:
            self._failing_since = check.started
        self.failures += 1
        self.unhealthy_seconds = check.ended - self._failing_since
