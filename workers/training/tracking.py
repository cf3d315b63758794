"""Metrics as TensorBoard's event files, beside the events that the supervisor reads.

A tracker is for people who look on: whatever fails in it is logged once, and the run goes on without.
"""

import logging
from pathlib import Path
from typing import Protocol

from tensorboardX import SummaryWriter

from workers.contracts import Event, Metrics
from workers.emitter import Emit

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...

    def flush(self) -> object: ...


class TrackedEmit:
    """Hands every event on, metrics to the tracker too."""

    def __init__(self, emit: Emit, tracker: Tracker | None) -> None:
        self._emit = emit
        self._tracker = tracker

    def __call__(self, event: Event) -> None:
        self._emit(event)
        if self._tracker is None or not isinstance(event, Metrics):
            return
        try:
            for name, value in event.data.items():
                self._tracker.add_scalar(name, value, event.step)
            self._tracker.flush()
        except Exception:
            logger.exception("metrics are no longer tracked")
            self._tracker = None


def tensorboard(folder: Path) -> Tracker | None:
    """A run that goes on adds a file to those that are there. None, logged, where nothing can be written."""
    try:
        writer: Tracker = SummaryWriter(str(folder))
    except Exception:
        logger.exception("TensorBoard's files can't be written")
        return None
    return writer
