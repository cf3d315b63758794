"""Sends metrics to experiment trackers, in addition to the events that the supervisor reads.

TensorBoard is always used. SLIPSTREAM_TRACKERS=mlflow,wandb adds other trackers, whose packages must be installed.
MLflow writes to MLFLOW_TRACKING_URI. Weights & Biases works offline unless WANDB_MODE is set. Trackers that write local
files write them into the folder of the run by default, and the artifact contains these files.

Each tracker has a thread and a queue. If a tracker raises an error, hangs or is too slow, an error is logged and the
training continues without this tracker.
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
FOLDERS = ("tensorboard", "mlflow", "wandb")  # names of the trackers' folders in the run's folder
_FLUSH_SECONDS = 10  # maximum delay until TensorBoard shows a value
_LAST_SECONDS = 20.0  # maximum time that a run waits at its end for the trackers to finish
_MAX_QUEUED = 1000  # maximum number of metrics events in the queue of a tracker

logger = logging.getLogger(__name__)


class Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    name: str
    folder: Path  # trackers create their own folders in this folder
    parameters: Mapping[str, Any]


OpenTracker = Callable[[TrackedRun], Tracker]


def configured_trackers() -> list[OpenTracker]:
    """Returns TensorBoard and the trackers that the environment names; unknown names are logged and left out."""
    names = [name.strip() for name in os.environ.get(TRACKERS_VARIABLE, "").split(",") if name.strip()]
    if unknown := sorted(set(names) - set(_TRACKERS)):
        logger.error("%s may name %s, got %s", TRACKERS_VARIABLE, ", ".join(_TRACKERS), ", ".join(unknown))
    return [TensorBoard, *(_TRACKERS[name] for name in dict.fromkeys(names) if name in _TRACKERS)]


@contextmanager
def tracked(
    emit: Emit, run: TrackedRun, trackers: Sequence[OpenTracker], *, last_seconds: float = _LAST_SECONDS
) -> Iterator[Emit]:
    """Yields a function that emits an event and, if it has metrics, also sends it to the trackers.

    On exit, waits until all trackers have finished, but at most `last_seconds`.
    """
    followers = [_Follower(run, tracker) for tracker in trackers]

    def emit_and_track(event: Event) -> None:
        emit(event)
        if isinstance(event, Metrics):
            for follower in followers:
                follower.enqueue(event)

    try:
        yield emit_and_track
    finally:
        for follower in followers:
            follower.enqueue(None)
        deadline = time.monotonic() + last_seconds
        for follower in followers:
            follower.wait(deadline)


class _Follower:
    """The thread and queue of one tracker. The thread is a daemon, so a hanging tracker does not block process exit."""

    def __init__(self, run: TrackedRun, open_tracker: OpenTracker) -> None:
        self._name = open_tracker.__name__
        self._queue: Queue[Metrics | None] = Queue(_MAX_QUEUED)
        self._is_lost = False
        self._thread = threading.Thread(target=self._follow, args=(run, open_tracker), name=self._name, daemon=True)
        self._thread.start()

    def enqueue(self, event: Metrics | None) -> None:
        """Adds an event to the queue; None tells the thread to close the tracker and end."""
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
            logger.error("%s has not finished: the run does not wait for it any longer", self._name)

    def _follow(self, run: TrackedRun, open_tracker: OpenTracker) -> None:
        try:
            with closing(open_tracker(run)) as tracker:
                while not self._is_lost and (event := self._queue.get()) is not None:
                    tracker.log(event.step, event.data)
        except Exception:  # the tracker is code of another project, whose errors must not end the run
            self._is_lost = True
            logger.exception("%s failed: metrics are no longer tracked there", self._name)


class TensorBoard:
    """Writes TensorBoard's event files. A resumed run adds another file."""

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
            self._mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")  # MLflow no longer writes plain files
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
            resume="allow",  # a killed run resumes under its name
            dir=str(folder),  # wandb creates the folder `wandb` in this folder
            config=dict(run.parameters),
            mode=os.environ.get("WANDB_MODE", "offline"),
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


_TRACKERS: Mapping[str, OpenTracker] = {"mlflow": Mlflow, "wandb": Wandb}
