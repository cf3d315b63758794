"""Handles the operator's requests that put the engine to sleep and wake it (engine/sleep.py)."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from engine.errors import SleepNotSupported
from engine.fields import InvalidRequest
from engine.server.async_engine import AsyncEngine
from engine.server.errors import EngineBroken, ServerFault

logger = logging.getLogger(__name__)

PATHS = ("/sleep", "/wake")

_POLL_SECONDS = 0.02

_Result = TypeVar("_Result")


class Sleeper(Protocol):
    """The part of `engine.sleep.Sleeper` that the server needs."""

    def check(self) -> None: ...

    def sleep(self) -> int: ...

    def wake(self) -> None: ...


class State(StrEnum):
    AWAKE = "awake"
    FALLING_ASLEEP = "falling_asleep"  # running requests end, and new ones are refused
    ASLEEP = "asleep"
    WAKING = "waking"


class Sleeping:
    """Puts the engine to sleep and wakes it.

    `lock` is held while the engine changes its state; the operator's other changes hold it too.
    """

    def __init__(self, async_engine: AsyncEngine, sleeper: Sleeper | None, lock: asyncio.Lock) -> None:
        """`sleeper`: None if this engine cannot sleep."""
        self.state = State.AWAKE
        self.sleep_seconds: float | None = None  # how long the engine last took to give its memory back
        self.wake_seconds: float | None = None  # how long the engine last took to restore its memory
        self._async_engine = async_engine
        self._sleeper = sleeper
        self._lock = lock

    def facts(self) -> dict[str, Any]:
        return {"state": str(self.state), "sleep_seconds": self.sleep_seconds, "wake_seconds": self.wake_seconds}

    async def sleep(self, *, min_idle_seconds: float | None = None) -> dict[str, Any]:
        """Puts the engine to sleep: waits until running requests have ended, and gives its memory back.

        Args: min_idle_seconds: sleep only if the engine has been idle for at least this time. No request can begin
            between this check and the refusal of new requests.
        Raises: InvalidRequest: this engine cannot sleep, or is in use. EngineBroken. A failure leaves the engine awake.
        """
        if self._sleeper is None:
            raise _not_supported("this engine cannot sleep")
        async with self._lock:
            if self.state is State.ASLEEP:
                return self.facts()
            try:
                self._sleeper.check()
            except SleepNotSupported as error:
                raise _not_supported(str(error)) from error
            idle_seconds = self._async_engine.idle_seconds
            if min_idle_seconds is not None and idle_seconds < min_idle_seconds:
                message = f"the engine was used {idle_seconds:.1f} s ago, which is less than {min_idle_seconds:.1f} s"
                raise InvalidRequest(message, code="engine_in_use", status=409)
            self._set(State.FALLING_ASLEEP)
            try:
                while self._async_engine.num_open or self._async_engine.worker.engine.has_work:
                    if self._async_engine.worker.broken:
                        raise EngineBroken(f"the engine is broken: {self._async_engine.worker.broken}")
                    await asyncio.sleep(_POLL_SECONDS)
                started = time.monotonic()
                num_bytes = await self._finish(self._sleeper.sleep)
            except OSError as error:
                self._set(State.AWAKE)
                raise ServerFault(f"the engine's memory could not be saved: {error.strerror}") from error
            except BaseException:
                self._set(State.AWAKE)
                raise
            self.sleep_seconds = round(time.monotonic() - started, 4)
            self._set(State.ASLEEP)
        logger.info("the engine sleeps: %d bytes saved in %.3f s", num_bytes, self.sleep_seconds)
        return self.facts()

    async def wake(self) -> dict[str, Any]:
        """Wakes the engine and accepts requests again. Raises: ServerFault: the engine still sleeps."""
        async with self._lock:
            if self._sleeper is None or self.state is State.AWAKE:
                return self.facts()
            started = time.monotonic()
            self._set(State.WAKING)
            try:
                await self._finish(self._sleeper.wake)
            except OSError as error:
                self._set(State.ASLEEP)
                raise ServerFault(f"the engine's memory could not be restored: {error.strerror}") from error
            except BaseException:
                self._set(State.ASLEEP)
                raise
            self._async_engine.used_at = time.monotonic()  # the request for which it was woken may arrive later
            self.wake_seconds = round(time.monotonic() - started, 4)
            self._set(State.AWAKE)
        logger.info("the engine is awake after %.3f s", self.wake_seconds)
        return self.facts()

    def _set(self, state: State) -> None:
        self.state = state
        self._async_engine.refuses = state is not State.AWAKE

    async def _finish(self, change: Callable[[], _Result]) -> _Result:
        """Runs `change` on the engine's thread."""
        return await asyncio.wrap_future(self._async_engine.worker.call(lambda _: change()))


def idle_seconds_of(text: str | None) -> float | None:
    """Parses the parameter `idle_seconds`. Raises: InvalidRequest."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidRequest(f"idle_seconds must be a number of at least 0, got {text[:40]!r}", param="idle_seconds")
    return seconds


def _not_supported(message: str) -> InvalidRequest:
    return InvalidRequest(message, code="sleep_not_supported", status=409)
