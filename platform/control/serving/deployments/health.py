"""Checks whether an endpoint can generate a token. A check runs in a thread, so that a hanging one delays no other."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx2

PROBE_TIMEOUT_SECONDS = 5.0


def engine_client() -> httpx2.Client:
    """Returns the client for all requests of a supervisor to its engines: creating one costs 18 ms of CPU time.

    Every request opens a connection, because a check has to show that the engine accepts connections.
    """
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    return httpx2.Client(trust_env=False, timeout=PROBE_TIMEOUT_SECONDS, limits=limits)


@dataclass(frozen=True, slots=True)
class Check:
    started: float
    ended: float
    is_healthy: bool


def probe(client: httpx2.Client, port: int, token: str) -> Check:
    started = time.monotonic()
    try:
        response = client.get(f"http://127.0.0.1:{port}/health", headers={"Authorization": f"Bearer {token}"})
        is_healthy = response.status_code == 200
    except httpx2.HTTPError:
        is_healthy = False
    return Check(started, time.monotonic(), is_healthy)


@dataclass(slots=True)
class HealthWatch:
    """The health checks of one process, from its launch or adoption on."""

    interval_seconds: float
    failures: int = 0  # consecutive failed checks
    unhealthy_seconds: float = 0.0  # from the start of the first to the end of the last of these checks
    _failing_since: float = 0.0
    _pending: "Future[Check] | None" = None
    _next_at: float = 0.0

    def poll(self, pool: ThreadPoolExecutor, client: httpx2.Client, port: int, token: str) -> bool | None:
        """Starts a check when one is due. Returns the result of a check that ended since the last call, else None."""
        if self._pending is None:
            if time.monotonic() >= self._next_at:
                self._pending = pool.submit(probe, client, port, token)
            return None
        if not self._pending.done():
            return None
        check = self._pending.result()
        self._pending, self._next_at = None, time.monotonic() + self.interval_seconds
        self._count(check)
        return check.is_healthy

    def _count(self, check: Check) -> None:
        """Counts only the time of checks that ran: a check that waits for a thread says nothing about its engine."""
        if check.is_healthy:
            self.failures, self.unhealthy_seconds = 0, 0.0
            return
        if self.failures == 0:
            self._failing_since = check.started
        self.failures += 1
        self.unhealthy_seconds = check.ended - self._failing_since
