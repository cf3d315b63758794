"""Runs the embedded stack, `python manage.py up`, as a child process."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
STOP_SECONDS = 90.0  # the stack stops its processes one after the other


class StackError(Exception):
    """The stack did not start; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class Address:
    base_url: str  # ends in /v1
    api_key: str


class Stack:
    """Runs the stack within a `with` block; after the block, all processes of the stack have ended.

    The stack runs in a separate session, so that Ctrl-C reaches only the caller, which then stops the stack.
    """

    def __init__(self, data_dir: Path, *, models: dict[str, Path]) -> None:
        self.data_dir = data_dir
        self.log_path = data_dir / "up.log"
        self._models = models
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        (self.data_dir / "ready.json").unlink(missing_ok=True)  # a killed stack does not remove this file
        command = [sys.executable, "manage.py", "up", "--port", "0"]
        for name, path in self._models.items():
            command += ["--model", f"{name}={path}"]
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {"SLIPSTREAM_DATA_DIR": str(self.data_dir)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_ready(self, seconds: float = START_SECONDS) -> Address:
        """Returns the address of the API. Raises: StackError: the stack ended, or was not ready in time."""
        assert self._process is not None, "enter the stack first"
        path = self.data_dir / "ready.json"
        deadline = time.monotonic() + seconds
        while not path.exists():
            if (code := self._process.poll()) is not None:
                raise StackError(f"`manage.py up` ended with code {code}\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise StackError(f"`manage.py up` was not ready after {seconds:.0f} s\n{self.log_tail()}")
            time.sleep(0.1)
        ready = json.loads(path.read_text(encoding="utf-8"))
        return Address(base_url=f"{ready['url']}/v1", api_key=ready["api_key"])

    def stop(self) -> None:
        """Interrupts the stack, waits, and kills it if necessary. A second call has no effect."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def log_tail(self, *processes: str, num_lines: int = 30) -> str:
        """Returns the last lines of the logs of the named processes, of the latest job and of the latest endpoint.

        If no process is named, returns the last lines of the log of `up`.
        """
        logs = self.data_dir / "logs"
        paths = [logs / f"{name}.log" for name in processes] or [self.log_path]
        if processes:
            for folder in ("jobs", "deployments"):
                paths += sorted((logs / folder).glob("*"), key=lambda path: path.stat().st_mtime)[-1:]
        tails = []
        for path in paths:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
            tails.append("\n".join([f"--- {path}", *(lines[-num_lines:] or ["(empty)"])]))
        return "\n".join(tails)
