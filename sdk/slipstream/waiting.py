"""Polling of an object until it reaches a final state."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from slipstream.drivers import Notice, Pause, Steps
from slipstream.errors import WaitTimeout
from slipstream.progress import Watch

_Object = TypeVar("_Object")


def wait_for(
    retrieve: Callable[[], Steps[_Object]],
    is_final: Callable[[_Object], bool],
    *,
    poll_seconds: float,
    timeout_seconds: float | None,
    on_progress: Callable[[_Object], Any] | None,
) -> Steps[_Object]:
    """Retrieves an object repeatedly until it is final, and returns it.

    Args: on_progress: gets every retrieved object, including the last. None: a terminal or a notebook shows a bar.
    Raises: WaitTimeout: `timeout_seconds` have passed.
    """
    if on_progress is not None:
        return (yield from _polled(retrieve, is_final, poll_seconds, timeout_seconds, on_progress))
    with Watch() as watch:
        return (yield from _polled(retrieve, is_final, poll_seconds, timeout_seconds, watch.show))


def _polled(
    retrieve: Callable[[], Steps[_Object]],
    is_final: Callable[[_Object], bool],
    poll_seconds: float,
    timeout_seconds: float | None,
    on_progress: Callable[[_Object], Any],
) -> Steps[_Object]:
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    while True:
        current = yield from retrieve()
        yield Notice(on_progress, current)
        if is_final(current):
            return current
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(f"not finished after {timeout_seconds:g} s: {current}")
        yield Pause(poll_seconds)
