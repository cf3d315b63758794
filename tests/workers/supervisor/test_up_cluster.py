"""`manage.py up --cluster` runs engines on a Ray cluster of this machine. The engines are fake ones."""

import importlib.util
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.control.models.catalog.test_folder import make_folder
from tests.e2e.stack import Stack, assert_nothing_is_left, start_stack, wait_for
from tests.migrated import sqlite_file

SECONDS = 30.0
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.workers.supervisor.engine_settings", "SLIPSTREAM_DEVICE": "cpu"}
PROGRAMS = {"gcs_server", "raylet", "valkey-server", "ray::EngineActor", "fake_engine.py"}

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the packages of requirements-ray.txt"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all addresses of 127.0.0.0/8"),
]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Stack]:
    data, model = tmp_path / "data", make_folder(tmp_path / "model")
    data.mkdir()
    shutil.copy(sqlite_file(), data / "slipstream.sqlite3")  # because migrations take ten seconds
    stack = start_stack(data, "--cluster", "1", "--model", f"tiny={model}", **ENVIRONMENT)
    yield stack
    stack.process.kill()
    stack.process.wait()


def test_an_engine_of_the_cluster_serves_a_request_and_ctrl_c_leaves_no_process(cluster: Stack) -> None:
    deployment = request(cluster, "POST", "/deployments", {"name": "endpoint", "model": "tiny"})["id"]
    wait_for(lambda: request(cluster, "GET", f"/deployments/{deployment}")["state"] == "ready", SECONDS, "not ready")
    messages = [{"role": "user", "content": "hello"}]
    assert request(cluster, "POST", "/chat/completions", {"model": "endpoint", "messages": messages})["usage"]

    started = {pid: command for pid, _, command in descendants(cluster.process.pid)}
    folder = folder_of_ray(started)
    assert all(any(program in command for command in started.values()) for program in PROGRAMS), started
    assert folder.is_dir()
    settings = (cluster.data_dir / "ray" / "store" / "valkey.conf").read_text().splitlines()
    password = next(line.removeprefix("requirepass ") for line in settings if line.startswith("requirepass "))
    assert [command for command in started.values() if password in command] == []

    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(SECONDS) == 0
    assert_nothing_is_left(cluster)
    assert {pid: command for pid, _, command in processes() if started.get(pid) == command} == {}
    assert not folder.exists()
    assert "did not stop" not in (cluster.data_dir / "up.log").read_text()


def request(stack: Stack, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {stack.key}"}
    answer = httpx2.request(method, stack.url + path, json=body, headers=headers, trust_env=False, timeout=SECONDS)
    assert answer.status_code < 300, answer.text
    return dict(answer.json())


def processes() -> Iterator[tuple[int, int, str]]:
    """Yields the id, the parent's id and the command line of each process that has one; zombies have none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue  # the process has ended
        if command:
            yield int(folder.name), parent, command


def descendants(ancestor: int) -> list[tuple[int, int, str]]:
    found: list[tuple[int, int, str]] = []
    everything, parents = list(processes()), {ancestor}
    while children := [process for process in everything if process[1] in parents]:
        found += children
        parents = {pid for pid, _, _ in children}
    return found


def folder_of_ray(started: dict[int, str]) -> Path:
    """Returns the folder with Ray's files, from the command line of a node."""
    words = next(command for command in started.values() if "--address=" in command and "--temp-dir=" in command)
    return Path(words.partition("--temp-dir=")[2].split()[0]).parent
