"""Metrics for people who look on, beside the events that the supervisor reads.

TensorBoard's files are always written. SLIPSTREAM_TRACKERS=mlflow,wandb adds others, whose packages must be there:
MLflow writes to MLFLOW_TRACKING_URI, Weights & Biases as WANDB_MODE says, offline unless it says anything; by default
both write beside TensorBoard, into the artifact.

Each tracker works in a thread of its own, behind a queue. Whether it raises, hangs or cannot keep up: that is logged
once, and the run goes on without it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Full, Queue
from typing import Any, Protocol

from tensorboardX import SummaryWriter

from workers.contracts import Event, Metrics
from workers.emitter import Emit

TRACKERS_VARIABLE = "SLIPSTREAM_TRACKERS"
FOLDERS = ("tensorboard", "mlflow", "wandb")  # of the trackers, below that of the run
_FLUSH_SECONDS = 10  # how far behind a looker-on may be
_LAST_SECONDS = 20.0  # for all trackers together, once the run has ended
_QUEUED = 1000  # metrics that a tracker may be behind

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    name: str
    folder: Path  # for what a tracker writes on this machine
    parameters: Mapping[str, Any]


Open = Callable[[TrackedRun], Tracker]


def configured_trackers() -> list[Open]:
    """TensorBoard and what the environment names; unknown names are logged and left out."""
    names = [name.strip() for name in os.environ.get(TRACKERS_VARIABLE, "").split(",") if name.strip()]
    if unknown := sorted(set(names) - set(_TRACKERS)):
        logger.error("%s knows %s, got %s", TRACKERS_VARIABLE, ", ".join(_TRACKERS), ", ".join(unknown))
    return [TensorBoard, *(_TRACKERS[name] for name in dict.fromkeys(names) if name in _TRACKERS)]


@contextmanager
def tracked(
    emit: Emit, run: TrackedRun, trackers: Sequence[Open], *, last_seconds: float = _LAST_SECONDS
) -> Iterator[Emit]:
    """Hands every event on, metrics to the trackers too; in the end waits for them, but not for ever."""
    followers = [_Follower(run, tracker) for tracker in trackers]

    def watched(event: Event) -> None:
        emit(event)
        if isinstance(event, Metrics):
            for follower in followers:
                follower.tell(event)

    try:
        yield watched
    finally:
        for follower in followers:
            follower.tell(None)
        deadline = time.monotonic() + last_seconds
        for follower in followers:
            follower.wait(deadline)


class _Follower:
    """One tracker's thread; a daemon, so that a tracker that hangs does not keep the process."""

    def __init__(self, run: TrackedRun, open_tracker: Open) -> None:
        self._name = open_tracker.__name__
        self._queue: Queue[Metrics | None] = Queue(_QUEUED)
        self._is_lost = False
        self._thread = threading.Thread(target=self._follow, args=(run, open_tracker), name=self._name, daemon=True)
        self._thread.start()

    def tell(self, event: Metrics | None) -> None:
        """None: that was all."""
        if self._is_lost:
            return
        try:
            self._queue.put_nowait(event)
        except Full:
            self._is_lost = True
            logger.error("%s cannot keep up: metrics are no longer tracked there", self._name)

    def wait(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            logger.error("%s has not come to its end: the run does not wait for it", self._name)

    def _follow(self, run: TrackedRun, open_tracker: Open) -> None:
        try:
            with closing(open_tracker(run)) as tracker:
                while not self._is_lost and (event := self._queue.get()) is not None:
                    tracker.log(event.step, event.data)
        except Exception:  # the boundary of foreign code: whatever it was, the run must not learn of it
            self._is_lost = True
            logger.exception("%s failed: metrics are no longer tracked there", self._name)


class TensorBoard:
    """A run that goes on adds a file to those that are there."""

    def __init__(self, run: TrackedRun) -> None:
        self._writer = SummaryWriter(str(run.folder / "tensorboard"), flush_secs=_FLUSH_SECONDS)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class Mlflow:
    def __init__(self, run: TrackedRun) -> None:
        self._mlflow = import_module("mlflow")
        if "MLFLOW_TRACKING_URI" not in os.environ:
            folder = run.folder.resolve() / "mlflow"
            folder.mkdir(parents=True, exist_ok=True)
            self._mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")  # it writes plain files no more
        self._mlflow.start_run(run_name=run.name)
        self._mlflow.log_params(dict(run.parameters))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=step)

    def close(self) -> None:
        self._mlflow.end_run()


class Wandb:
    def __init__(self, run: TrackedRun) -> None:
        folder = Path(os.environ.get("WANDB_DIR", run.folder))
        self._run = import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", "slipstream"),
            name=run.name,
            id=run.name,
            resume="allow",  # a run that was killed goes on under its name
            dir=str(folder),  # makes a folder `wandb` there
            config=dict(run.parameters),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS: Mapping[str, Open] = {"mlflow": Mlflow, "wandb": Wandb}
