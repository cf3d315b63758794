"""Writes the child process's events, one per line; at most two progress events per second. Standard library only."""

import time
from collections.abc import Callable
from typing import TextIO

from workers.contracts import Event, Progress, encode_event

PROGRESS_INTERVAL_SECONDS = 0.5

Emit = Callable[[Event], None]


class EventWriter:
    """Writes events to `stream`.

    A progress event that comes less than `PROGRESS_INTERVAL_SECONDS` after the previous one is dropped, unless it
    reports that all work is done.
    """

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next_progress = float("-inf")

    def __call__(self, event: Event) -> None:
        if isinstance(event, Progress) and not self._progress_is_due(event):
            return
        self._stream.write(encode_event(event) + "\n")
        self._stream.flush()  # the supervisor acts on each line

    def _progress_is_due(self, event: Progress) -> bool:
        now = self._clock()
        if now < self._next_progress and event.done < event.total:
            return False
        self._next_progress = now + PROGRESS_INTERVAL_SECONDS
        return True
