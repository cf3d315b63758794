"""Starts a child process from a spec, reads its events line by line, and stops it with its whole process group."""

import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import workers
from control.core.observability.child_logs import child_log_environment
from control.core.processes.child_environment import child_environment
from control.core.processes.engine_users import EngineUser, make_readable, make_writable
from control.core.processes.in_use import open_in_use
from control.queue.jobs.config import get_job_config
from workers.contracts import ContractError, Event, Failed, FailureClass, Spec, decode_event, write_spec
from workers.parent_death import dying_with_parent

MAX_LOG_BYTES = 16 * 1024 * 1024


class ChildProcess:
    """A running child process. The thread that creates it must outlive it: see
    `workers.parent_death.dying_with_parent`."""

    def __init__(
        self,
        spec: Spec,
        *,
        folder: Path,
        log_path: Path,
        log_ids: Mapping[str, Any],
        user: EngineUser | None = None,
        uses: Sequence[int] = (),
        visible_devices: str | None = None,
    ) -> None:
        """Args:
        log_ids: fields that are added to every line of the child's log.
        user: the user of the child; None: the user of this process.
        uses: file descriptors that the child inherits.
        visible_devices: the child's CUDA_VISIBLE_DEVICES; None: the value of this process.
        """
        devices = {} if visible_devices is None else {"CUDA_VISIBLE_DEVICES": visible_devices}
        spec_path = folder / "spec.json"
        write_spec(spec, spec_path)
        if user is not None:
            _give_access(folder, spec, user)
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            dying_with_parent([*_command(), str(spec_path)], uid=None if user is None else user.uid),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={
                **_environment(),
                **devices,
                **(user.environment() if user else {}),
                **child_log_environment(log_ids),
            },
            cwd=folder,
            pass_fds=tuple(uses),
            start_new_session=True,  # a process group of its own, so that the child's own processes are killed too
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = (
            threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._copy_log, args=(self._process.stderr, log_path), daemon=True),
        )
        for thread in self._threads:
            thread.start()

    def next_event(self, timeout_seconds: float) -> Event | None:
        """Returns the next event; None if the child closed its output. Raises: queue.Empty: no event came in time."""
        return self._events.get(timeout=timeout_seconds)

    def wait(self, timeout_seconds: float) -> int:
        """Waits for the child's end, and kills a child that does not exit in time.

        Returns: the exit status; after a signal, minus the number of the signal.
        """
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        return self._process.wait()

    def stop(self, grace_seconds: float) -> None:
        """Kills the process group; if `grace_seconds` > 0, sends SIGTERM to the group first. May be called twice."""
        if self._process.poll() is None and grace_seconds > 0:
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):  # killed below
                self._process.wait(grace_seconds)
        self._signal(signal.SIGKILL)  # also if the child has ended, because its own processes may have outlived it
        self._process.wait()
        for thread in self._threads:
            thread.join(timeout=5)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the group is empty
            os.killpg(self._process.pid, number)

    def _read_events(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                try:
                    self._events.put(decode_event(line.decode()))
                except (ContractError, UnicodeDecodeError) as error:
                    self._events.put(
                        Failed(failure_class=FailureClass.BUG, code="invalid_event", message=str(error)[:500])
                    )
        self._events.put(None)

    def _copy_log(self, stream: IO[bytes], log_path: Path) -> None:
        written = 0
        with stream, open_in_use(log_path) as log:
            while chunk := os.read(stream.fileno(), 65536):
                log.write(chunk[: max(0, MAX_LOG_BYTES - written)])
                log.flush()
                written += len(chunk)


def _give_access(folder: Path, spec: Spec, user: EngineUser) -> None:
    """Lets the child read its inputs and write its results.

    Root stays the owner of the folder itself. Otherwise, the child could put a link where root writes the next spec or
    input.
    """
    paths = (getattr(spec, name, None) for name in ("output_dir", "checkpoint_dir"))  # not every spec has both
    outputs = [Path(path) for path in paths if path is not None]
    # Inputs are made readable only before the first child starts.
    if not any(output.exists() and output.stat().st_uid == user.uid for output in outputs):
        make_readable(folder, user)
    (folder / "spec.json").chmod(0o644)
    for output in outputs:
        make_writable(output, user)


def _command() -> list[str]:
    command = get_job_config().child_command
    return shlex.split(command) if command else [sys.executable, "-m", "workers.run"]


def _environment() -> dict[str, str]:
    environment = child_environment()
    root = str(Path(workers.__path__[0]).resolve().parent)
    environment["PYTHONPATH"] = os.pathsep.join(part for part in (root, os.environ.get("PYTHONPATH")) if part)
    return environment
