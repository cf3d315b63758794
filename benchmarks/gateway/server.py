"""Starts the processes of a measurement (the gateway and helpers), and reads what a process uses from /proc."""

import asyncio
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60.0

NextLine = Callable[[], Coroutine[Any, Any, str]]


def raise_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@dataclass(frozen=True, slots=True)
class Process:
    """What a running process uses, read from /proc, which only Linux has."""

    pid: int

    @property
    def num_threads(self) -> int:
        return self._status("Threads")

    @property
    def rss_bytes(self) -> int:
        return self._status("VmRSS") * 1024

    @property
    def num_files(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    @property
    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime

    def num_connections(self, *, sqlite_path: Path | None = None, port: int | None = None) -> int:
        """Counts connections to a database: open files of SQLite, or sockets connected to the port of PostgreSQL."""
        if sqlite_path is not None:
            links = (os.path.realpath(link) for link in Path(f"/proc/{self.pid}/fd").iterdir())
            return sum(link == str(sqlite_path.resolve()) for link in links)
        lines = Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]
        inodes = {line.split()[9] for line in lines if line.split()[2].endswith(f":{port:04X}")}
        own = (os.path.realpath(link) for link in Path(f"/proc/{self.pid}/fd").iterdir())
        return sum(link.rpartition("/")[2] in {f"socket:[{inode}]" for inode in inodes} for link in own)

    def _status(self, name: str) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


@asynccontextmanager
async def gateway(environment: dict[str, str], log: Path) -> AsyncIterator[tuple[int, Process]]:
    """Runs the API and the gateway in a process. Yields its port and the process."""
    port = _free_port()
    command = [sys.executable, "-m", "uvicorn", "control.asgi:application", "--port", str(port), "--ws", "none"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not await _is_listening(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway did not start: {log.read_text()[-2000:]}")
            await asyncio.sleep(0.1)
        yield port, Process(process.pid)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)


@asynccontextmanager
async def helper(module: str, *arguments: object, package: str = "benchmarks.gateway") -> AsyncIterator[str]:
    """Runs a module of the package until the block ends. Yields the first line that it prints."""
    async with helper_lines(module, *arguments, package=package) as next_line:
        yield await next_line()


@asynccontextmanager
async def helper_lines(module: str, *arguments: object, package: str) -> AsyncIterator[NextLine]:
    """Runs a module of the package until the block ends. Yields a function that waits for the next line it prints."""
    command = [sys.executable, "-m", f"{package}.{module}", *map(str, arguments)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    output = process.stdout

    async def next_line() -> str:
        line = (await output.readline()).decode().strip()
        if not line:
            raise RuntimeError(f"{package}.{module} failed; its error is above")
        return line

    try:
        yield next_line
    finally:
        process.stdin.close()
        await process.wait()


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
