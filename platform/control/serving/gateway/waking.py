"""Wakes sleeping engines for the requests that wait for them.

A sleeping engine refuses each request before it has done anything for the request. The gateway learns from this refusal
that the engine sleeps. It does not rely on the replica's row, which may be some seconds old. An engine that is already
awake answers a request to wake at once, so any number of gateways may send such requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable

from control.core.api.errors import ApiError
from control.serving.gateway.upstream import Target

HEADER = "X-Scale-Up-Timeout"
DEFAULT_WAIT_SECONDS = 60.0
MAX_WAIT_SECONDS = 600.0
RETRY_AFTER_SECONDS = 5


class StillAsleep(ApiError):
    """The engine did not wake within the caller's limit. This does not count as a failure of the engine."""

    def __init__(self, waited_seconds: float) -> None:
        super().__init__(
            503,
            f"The deployment sleeps, and was not awake within {waited_seconds:g} s. It continues to wake. Try again, "
            f"or set the header {HEADER} to a higher number of seconds.",
            "deployment_waking",
            headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
        )


def wait_seconds(header: str | None) -> float:
    """Parses the header with which a caller limits its wait. Raises: ApiError: 400."""
    if header is None:
        return DEFAULT_WAIT_SECONDS
    try:
        seconds = float(header)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= MAX_WAIT_SECONDS:
        message = f"{HEADER} must be a number of seconds from 0 to {MAX_WAIT_SECONDS:g}, got {header[:40]!r}."
        raise ApiError(400, message, "invalid_value", HEADER)
    return seconds


class Waking:
    """Wakes engines. Of concurrent requests for one engine, only the first wakes it; the others wait for the result."""

    def __init__(self, wake: Callable[[Target], Awaitable[None]]) -> None:
        self._wake = wake
        self._tasks: dict[Target, asyncio.Task[None]] = {}

    async def wake(self, target: Target, *, begun: float, limit_seconds: float) -> None:
        """Returns when the engine is awake.

        Args: begun: when the request began to wait, by the monotonic clock.
        Raises: StillAsleep: the engine continues to wake. NotAccepted: it does not answer.
        """
        task = self._tasks.get(target)
        if task is None:
            task = self._tasks[target] = asyncio.ensure_future(self._wake(target))
            task.add_done_callback(lambda ended: self._drop(target, ended))
        # The task is not cancelled when a caller disconnects or gives up, because other callers may wait for it.
        await asyncio.wait({task}, timeout=max(0.0, begun + limit_seconds - time.monotonic()))
        if not task.done():
            raise StillAsleep(limit_seconds)
        task.result()

    def _drop(self, target: Target, task: "asyncio.Task[None]") -> None:
        del self._tasks[target]
        if not task.cancelled():
            task.exception()  # marks the error as retrieved, in case all callers have given up
