"""Starts engine servers in separate processes, for tests and for the commands `hostile` and `soak`."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx2

TOKEN = "secret-of-the-test"
OPERATOR_TOKEN = "secret-of-the-operator"


@dataclass(frozen=True, slots=True)
class Child:
    """A server that is ready to serve, or that has failed to start."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]  # the first line that the process printed, which says whether the server is ready

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def get(self, path: str, *, token: str = TOKEN) -> httpx2.Response:
        return httpx2.get(self.url + path, headers={"authorization": f"Bearer {token}"}, timeout=60)

    def metric(self, name: str) -> float:
        """Returns the sum of a metric over its labels."""
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(f"{name}{{")]
        assert lines, f"no metric {name}"
        return sum(float(line.split()[-1]) for line in lines)


def launch(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment |= {"SLIPSTREAM_ENGINE_TOKEN": TOKEN, "SLIPSTREAM_ENGINE_OPERATOR_TOKEN": OPERATOR_TOKEN}
    command = [sys.executable, "-m", "engine.server", "--model-name", "tiny", "--port", "0", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@contextmanager
def running(model_dir: Path, *arguments: str) -> Iterator[Child]:
    """Runs one server and kills it at the end of the `with` block."""
    with running_servers(model_dir, {"one": arguments}) as servers:
        yield servers("one")


@contextmanager
def running_servers(model_dir: Path, servers: Mapping[str, Sequence[str]]) -> Iterator[Callable[[str], Child]]:
    """Starts all servers at once, because loading takes long. Yields a function that waits for one server by name."""
    processes = {name: launch("--model-dir", str(model_dir), *options) for name, options in servers.items()}

    @cache
    def child(name: str) -> Child:
        stdout = processes[name].stdout
        assert stdout is not None
        return Child(processes[name], json.loads(stdout.readline()))

    try:
        yield child
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
