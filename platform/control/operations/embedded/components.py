"""Runs a process of the embedded stack and restarts it when it dies.

The parent of the process is a keeper. This small process ends its child when a pipe, the lifeline, closes (see
`workers.parent_death`).
"""

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from control.core.processes.in_use import open_in_use
from workers.parent_death import kept_command

log = structlog.get_logger(__name__)

MAX_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 60.0  # if a process lived longer than this before it died, the pauses start again at 1 s


@dataclass(slots=True, kw_only=True)
class Component:
    name: str
    command: list[str]
    cwd: Path
    environment: Mapping[str, str]
    log_path: Path
    stop_seconds: float = 15.0  # between SIGTERM and SIGKILL
    children_stay: bool = False  # if the process dies, its children continue, and watch the lifeline themselves
    process: "subprocess.Popen[bytes] | None" = None
    deaths: int = 0  # number of consecutive deaths, each less than STEADY_SECONDS after the start
    _started_at: float = field(default=0.0)
    _start_again_at: float | None = None

    def start(self, lifeline: int) -> None:
        with open_in_use(self.log_path) as output:
            self.process = subprocess.Popen(
                kept_command(self.command, lifeline=lifeline, adopt=not self.children_stay),
                cwd=self.cwd,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C in a terminal reaches only the stack, which then stops its components
                pass_fds=(lifeline,),
            )
        self._started_at, self._start_again_at = time.monotonic(), None

    def watch(self, lifeline: int) -> None:
        """Restarts the process if it has died, after a pause of 1, 2, 4 … 30 s."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            return
        now = time.monotonic()
        if self._start_again_at is None:
            self.deaths = 1 if now - self._started_at > STEADY_SECONDS else self.deaths + 1
            pause = min(MAX_PAUSE_SECONDS, 2.0 ** (self.deaths - 1))
            self._start_again_at = now + pause
            log.warning("component died", component=self.name, code=code, pause_seconds=pause, log=str(self.log_path))
        elif now >= self._start_again_at:
            self.start(lifeline)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(self.stop_seconds)
        except subprocess.TimeoutExpired:
            log.warning("component did not stop", component=self.name, seconds=self.stop_seconds)
