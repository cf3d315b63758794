"""Metrics as TensorBoard's event files, beside the events that the supervisor reads.

A tracker is for people who look on: whatever fails in it is logged once, and the run goes on without.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from tensorboardX import SummaryWriter

from workers.contracts import Event, Metrics
from workers.emitter import Emit

_FLUSH_SECONDS = 10  # how far behind a looker-on may be

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...

    def close(self) -> object: ...


@contextmanager
def tracked(emit: Emit, tracker: Tracker | None) -> Iterator[Emit]:
    """Hands every event on, metrics to the tracker too, which is closed in the end."""
    watched = _Tracked(emit, tracker)
    try:
        yield watched
    finally:
        watched.tell(lambda tracker: tracker.close())


class _Tracked:
    def __init__(self, emit: Emit, tracker: Tracker | None) -> None:
        self._emit = emit
        self._tracker = tracker

    def __call__(self, event: Event) -> None:
        self._emit(event)
        if isinstance(event, Metrics):
            for name, value in event.data.items():
                self.tell(partial(_add, name=name, value=value, step=event.step))

    def tell(self, what: Callable[[Tracker], object]) -> None:
        if self._tracker is None:
            return
        try:
            what(self._tracker)
        except Exception:
            logger.exception("metrics are no longer tracked")
            self._tracker = None


def _add(tracker: Tracker, *, name: str, value: float, step: int) -> None:
    tracker.add_scalar(name, value, step)


def tensorboard(folder: Path) -> Tracker | None:
    """A run that goes on adds a file to those that are there. None, logged, where nothing can be written."""
    try:
        writer: Tracker = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)
    except Exception:
        logger.exception("TensorBoard's files can't be written")
        return None
    return writer
