"""Checks whether an endpoint can generate a token. A check runs in a thread, so that a hanging one delays no other."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx2

PROBE_TIMEOUT_SECONDS = 5.0


def probe(port: int, token: str) -> bool:
    try:
        with httpx2.Client(trust_env=False, timeout=PROBE_TIMEOUT_SECONDS) as client:
            response = client.get(f"http://127.0.0.1:{port}/health", headers={"Authorization": f"Bearer {token}"})
    except httpx2.HTTPError:
        return False
    return response.status_code == 200


@dataclass(slots=True)
class HealthWatch:
    """The health checks of one process, from its launch or adoption on."""

    interval_seconds: float
    failures: int = 0  # consecutive failed checks
    last_good: float = field(default_factory=time.monotonic)  # time of the last good check, or of the creation
    _pending: "Future[bool] | None" = None
    _next_at: float = 0.0

    def poll(self, pool: ThreadPoolExecutor, port: int, token: str) -> bool | None:
        """Starts a check when one is due. Returns the result of a check that ended since the last call, else None."""
        if self._pending is None:
            if time.monotonic() >= self._next_at:
                self._pending = pool.submit(probe, port, token)
            return None
        if not self._pending.done():
            return None
        healthy = self._pending.result()
        self._pending, self._next_at = None, time.monotonic() + self.interval_seconds
        if healthy:
            self.failures, self.last_good = 0, time.monotonic()
        else:
            self.failures += 1
        return healthy

    @property
    def unhealthy_seconds(self) -> float:
        return time.monotonic() - self.last_good
