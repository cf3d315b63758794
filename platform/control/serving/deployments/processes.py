"""Processes that may not be our children: told apart by pid and start time, since pids are used again."""

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
MARK = "SLIPSTREAM_DEPLOYMENT_ID"  # in the environment of every endpoint process


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    started: str  # of this very process; never the same for two of one pid

    def is_alive(self) -> bool:
        """A zombie is dead: it can't serve, and its parent may never collect it."""
        return process_started(self.pid) == self.started

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """The whole process group: what the process has started goes with it."""
        self._signal(signal.SIGKILL, group=True)

    def _signal(self, number: signal.Signals, *, group: bool = False) -> None:
        if not self.is_alive():
            return
        with contextlib.suppress(ProcessLookupError):  # gone between the look and the signal
            os.killpg(self.pid, number) if group else os.kill(self.pid, number)


def process_started(pid: int) -> str | None:
    """When the process began, as a text to compare. None: there is no such process, or it is a zombie."""
    if not _PROC.joinpath("self", "stat").exists():
        return _started_by_ps(pid)
    try:
        stat = _PROC.joinpath(str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the name before may hold spaces and parentheses
    if state in "ZXx":
        return None
    boot = _PROC.joinpath("sys/kernel/random/boot_id").read_text()[:8]
    return f"{boot}-{fields[18]}"  # field 22 of the line: clock ticks since boot


def _started_by_ps(pid: int) -> str | None:
    found = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = found.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def marked_processes() -> dict[int, str]:
    """pid -> deployment id, for every process of this user that was started as an endpoint. Linux only, else empty."""
    found: dict[int, str] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            environment = folder.joinpath("environ").read_bytes()
        except OSError:
            continue  # another user's, or gone
        for entry in environment.split(b"\0"):
            if entry.startswith(MARK.encode() + b"="):
                found[int(folder.name)] = entry.partition(b"=")[2].decode(errors="replace")
    return found
