"""Handles processes that need not be our children. Pid and start time identify a process, because pids are reused."""

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
# Variables in the environment of endpoint processes, with the value deployment-number-generation. The engine of a Ray
# actor has the second one, so that the machine's supervisors ignore this engine: its actor ends it.
NAME_VARIABLE, ACTOR_NAME_VARIABLE = "SLIPSTREAM_REPLICA", "SLIPSTREAM_RAY_REPLICA"


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    pid: int
    started: str  # start time; no two processes with the same pid have the same start time

    def is_alive(self) -> bool:
        """A zombie is dead: it can't serve, and its parent may never collect it."""
        return process_started(self.pid) == self.started

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the whole process group, so that the children of the process end too."""
        self._signal(signal.SIGKILL, group=True)

    def _signal(self, number: signal.Signals, *, group: bool = False) -> None:
        if self.pid <= 1 or not self.is_alive():  # killpg(1) would signal all processes of the machine
            return
        with contextlib.suppress(ProcessLookupError):  # the process ended between the check and the signal
            os.killpg(self.pid, number) if group else os.kill(self.pid, number)


def process_started(pid: int) -> str | None:
    """Returns a process's start time as a text, for comparisons. None: no such process exists, or only a zombie."""
    if not _PROC.joinpath("self", "stat").exists():
        return _started_by_ps(pid)
    try:
        stat = _PROC.joinpath(str(pid), "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = stat.rpartition(")")[2].split()  # the program's name, before this ")", may contain ")" and spaces
    if state in "ZXx":  # zombie or dead
        return None
    boot = _PROC.joinpath("sys/kernel/random/boot_id").read_text()[:8]  # ticks start again at each boot
    return f"{boot}-{fields[18]}"  # field 22 of the line (`fields` starts at field 4): clock ticks since boot


def _started_by_ps(pid: int) -> str | None:
    listed = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = listed.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def endpoint_processes(variable: str = NAME_VARIABLE) -> dict[int, str]:
    """Maps the pid of each endpoint process of this user to the process's name. Empty on systems other than Linux."""
    names: dict[int, str] = {}
    for folder in _PROC.glob("[0-9]*"):
        try:
            environment = folder.joinpath("environ").read_bytes()
        except OSError:
            continue  # the process belongs to another user or has ended
        for entry in environment.split(b"\0"):
            if entry.startswith(variable.encode() + b"="):
                names[int(folder.name)] = entry.partition(b"=")[2].decode(errors="replace")
    return names
