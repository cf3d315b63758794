"""Runs a child process to its end; stops it if the job is cancelled, paused, expired or stalled, or loses its lease."""

import queue
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import structlog

from control.core.processes.engine_homes import use_home
from control.core.processes.engine_users import engine_user
from control.core.settings.config import get_config
from control.models.catalog.cache import use_if_copy
from control.queue.jobs.config import get_job_config
from control.queue.jobs.failures import KILLED
from control.queue.jobs.services import job_metrics, job_progress
from control.queue.jobs.state import LeaseLost
from workers.contracts import (
    MAX_ROWS,
    Checkpoint,
    Event,
    Failed,
    FailureClass,
    Finished,
    Metrics,
    Progress,
    ShardDone,
    Spec,
)
from workers.supervisor.attempt import Attempt
from workers.supervisor.child import ChildProcess
from workers.supervisor.outcomes import AttemptFailed, Cancelled, ChildCrashed, Draining, Paused

TICK_SECONDS = 0.2  # interval between checks whether the child must be stopped
PROGRESS_SECONDS = 1.0  # interval between writes of progress to the database
CANCEL_GRACE_SECONDS = 2.0
EXIT_GRACE_SECONDS = 30.0  # time between the child's last event and its exit
# Preempted machines, operators, and the kernel (when memory runs out) send these signals. A crash of the code ends
# the process with other signals.
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)


def run_child(
    attempt: Attempt,
    spec: Spec,
    *,
    on_result: Callable[[ShardDone | Checkpoint], None],
    rows_done_before: int = 0,
    rows_total: int | None = None,
    seconds_left: float | None = None,
) -> Finished:
    """Runs a child process and returns its event `finished`.

    Args:
        on_result: commits a shard or a checkpoint.
        rows_done_before: a number that is added to the progress of the child, which counts only the rows of its spec.
        rows_total: replaces the child's total in the progress.
        seconds_left: seconds until the job expires; None: it never expires.

    Raises: Cancelled, Draining, Paused, LeaseLost, AttemptFailed, ChildCrashed: all after the child has ended.
    """
    ids = structlog.contextvars.get_contextvars()
    user = engine_user(get_config(), attempt.claim.organization_id)
    with nullcontext() if user is None else use_home(user):
        with model_used(spec) as uses:
            child = ChildProcess(
                spec,
                folder=attempt.folder,
                log_path=attempt.log_path,
                log_ids=ids,
                user=user,
                uses=uses,
                visible_devices=attempt.claim.visible_devices,
            )
        try:
            return _Watch(attempt, child, on_result, rows_done_before, rows_total, seconds_left).until_finished()
        except (Cancelled, Draining, Paused):
            child.stop(CANCEL_GRACE_SECONDS)
            raise
        finally:
            child.stop(0)


@contextmanager
def model_used(spec: Spec) -> Iterator[list[int]]:
    """Yields file descriptors that protect this machine's copy of the model from deletion while a process has them
    open.

    Raises: AttemptFailed: the copy was deleted after it was staged.
    """
    folder = Path(spec.model_dir)
    with use_if_copy(get_config(), folder) or nullcontext() as lock:
        if lock is not None and not folder.is_dir():
            raise AttemptFailed(FailureClass.INFRA, "model_missing", "The copy of the model was deleted.")
        yield [] if lock is None else [lock.fileno()]


class _Watch:
    def __init__(
        self,
        attempt: Attempt,
        child: ChildProcess,
        on_result: Callable[[ShardDone | Checkpoint], None],
        rows_done_before: int,
        rows_total: int | None,
        seconds_left: float | None,
    ) -> None:
        self._attempt = attempt
        self._child = child
        self._on_result = on_result
        self._rows_done_before = rows_done_before
        self._rows_total = rows_total
        self._last_event_at = time.monotonic()
        self._expires_at = None if seconds_left is None else self._last_event_at + seconds_left
        self._sent_event = False
        self._drain_until: float | None = None
        self._progress: Progress | None = None
        self._metrics: Mapping[str, float] | None = None
        self._has_unwritten_progress = False
        self._written_at = 0.0

    def until_finished(self) -> Finished:
        while True:
            self._check()
            try:
                event = self._child.next_event(TICK_SECONDS)
            except queue.Empty:
                continue
            finally:
                self._write_progress()
            if event is None:
                raise self._crash()
            self._last_event_at = time.monotonic()
            self._sent_event = True
            finished = self._on_event(event)
            if finished is not None:
                self._write_progress(at_once=True)
                self._child.wait(EXIT_GRACE_SECONDS)
                return finished

    def _on_event(self, event: Event) -> Finished | None:
        match event:
            case Finished():
                _check_paths(self._attempt.folder, event.artifacts.values())
                return event
            case Failed():
                raise attempt_failed(event)
            case ShardDone() | Checkpoint():
                _check_paths(self._attempt.folder, [event.path])
                self._write_progress(at_once=True)  # the checkpoint's job event includes the metrics written last
                self._on_result(event)
                if self._attempt.stop.is_set():
                    raise Draining
            case Progress():
                self._progress, self._has_unwritten_progress = event, True
            case Metrics():
                self._metrics, self._has_unwritten_progress = event.data, True
        return None

    def _check(self) -> None:
        """Raises: LeaseLost, Cancelled, Draining, AttemptFailed, ChildCrashed: the child must be stopped."""
        lease = self._attempt.lease
        if lease.lost.is_set():
            raise LeaseLost("the lease ran out while the child worked")
        if lease.cancel_requested.is_set():
            raise Cancelled
        now = time.monotonic()
        if self._attempt.stop.is_set():
            self._drain_until = self._drain_until or now + get_job_config().drain_seconds
            if now >= self._drain_until:
                raise Draining
        if self._expires_at is not None and now >= self._expires_at:
            raise AttemptFailed(FailureClass.EXPIRED, "expired", "The time for this job has ended.")
        silent_seconds = now - self._last_event_at
        if silent_seconds > get_job_config().stall_seconds:
            message = f"the worker process sent no event for {silent_seconds:.0f} s"
            raise ChildCrashed("no_progress", message, sent_event=self._sent_event)

    def _crash(self) -> AttemptFailed:
        status = self._child.wait(EXIT_GRACE_SECONDS)
        if self._attempt.lease.lost.is_set():
            raise LeaseLost("the lease ran out while the child worked")
        how = f"signal {-status} ({signal.Signals(-status).name})" if status < 0 else f"exit status {status}"
        code = KILLED if -status in _FROM_OUTSIDE else "worker_crashed"
        return ChildCrashed(code, f"the worker process ended with {how}", sent_event=self._sent_event)

    def _write_progress(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if not self._has_unwritten_progress or (not at_once and now - self._written_at < PROGRESS_SECONDS):
            return
        self._has_unwritten_progress, self._written_at = False, now
        if self._metrics is not None:
            job_metrics(claim=self._attempt.claim, metrics=self._metrics)
        if self._progress is not None:
            job_progress(
                claim=self._attempt.claim,
                done=self._rows_done_before + self._progress.done,
                total=self._progress.total if self._rows_total is None else self._rows_total,
                unit=self._progress.unit,
            )


def attempt_failed(event: Failed) -> AttemptFailed:
    """Returns the failure that the child reports. Its values are checked, because a model that has taken over the child
    process can send any values."""
    try:
        failure_class = FailureClass(event.failure_class)
    except ValueError:
        failure_class = FailureClass.BUG
    is_valid = isinstance(event.num_rows, int) and 1 <= event.num_rows <= max(MAX_ROWS.values())
    num_rows = event.num_rows if is_valid else None
    return AttemptFailed(failure_class, event.code, event.message, num_rows=num_rows)


def _check_paths(folder: Path, paths: Iterable[str]) -> None:
    """Refuses results outside of the work folder, because a model that has taken over the child process could name
    files of the service."""
    for path in map(Path, paths):
        entries = [path, *path.rglob("*")]
        inside = path.resolve().is_relative_to(folder.resolve())
        if not inside or any(entry.is_symlink() for entry in entries):
            raise AttemptFailed(FailureClass.BUG, "invalid_event", "the child named a file outside of its folder")
