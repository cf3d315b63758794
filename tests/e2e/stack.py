"""Starts and stops a real `manage.py up` with its own data folder, and checks that no process or file remains."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Stack:
    data_dir: Path
    process: "subprocess.Popen[bytes]"
    url: str  # ends in /v1
    key: str

    def processes(self, fragment: str = "") -> list[int]:
        """Ids of processes with this stack's data folder in their environment and `fragment` in their command line."""
        mark = f"SLIPSTREAM_DATA_DIR={self.data_dir}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_ours = mark in (folder / "environ").read_bytes().split(b"\0")
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # the process has ended or belongs to another user
            if is_ours and fragment in command:
                found.append(int(folder.name))
        return found

    def endpoints(self) -> list[int]:
        """Ids of the engines' processes, whose environment names a deployment instead of the data folder."""
        return [
            pid
            for pid in _pids_with_a_deployment_id()
            if _command(pid).find("engine.server") >= 0 and self._belongs_to_this_stack(pid)
        ]

    def _belongs_to_this_stack(self, pid: int) -> bool:
        logs = (self.data_dir / "logs" / "deployments").glob("*.log")
        beginnings = tuple(f"SLIPSTREAM_REPLICA={log.stem}-".encode() for log in logs)
        return any(entry.startswith(beginnings) for entry in _environment(pid))

    def stop(self) -> int:
        """Stops the stack like Ctrl-C. Returns: the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(STOP_SECONDS)


def start_stack(data_dir: Path, *arguments: str, **environment: str) -> Stack:
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "up.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", "0", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment, "SLIPSTREAM_DATA_DIR": str(data_dir)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    wait_for(
        lambda: _ready(data_dir).get("pid") == process.pid or process.poll() is not None,
        START_SECONDS,
        "the stack is not ready",
    )
    if process.poll() is not None:
        pytest.fail((data_dir / "up.log").read_text()[-4000:])
    values = _ready(data_dir)
    return Stack(data_dir, process, f"{values['url']}/v1", values["api_key"])


def assert_nothing_is_left(stack: Stack) -> None:
    """Checks that a regular shutdown left neither a process of the stack nor `ready.json`."""
    assert stack.processes() == []
    assert stack.endpoints() == []
    assert not (stack.data_dir / "ready.json").exists()


def _ready(data_dir: Path) -> dict[str, Any]:
    """Returns the content of ready.json, which `up` writes when the stack is ready, or {} if there is no such file."""
    try:
        return dict(json.loads((data_dir / "ready.json").read_text()))
    except FileNotFoundError:
        return {}


def wait_for(condition: Callable[[], bool], seconds: float, message: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{message} within {seconds:.0f} s")
        time.sleep(0.1)


def _pids_with_a_deployment_id() -> list[int]:
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if b"SLIPSTREAM_REPLICA=" in b"".join(_environment(int(folder.name)))
    ]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
