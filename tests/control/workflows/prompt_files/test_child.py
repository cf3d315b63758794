"""Promise E52 of docs/reliability.md: child processes with limits read files, and end when their parents end."""

import os
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.test import Client
from structlog.testing import capture_logs

from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.quotas import file_work
from control.workflows.datasets import reader, rendering
from control.workflows.prompt_files import child, file_pass
from control.workflows.prompt_files.child import ChildDied, FileRefused, LimitExceeded, run_in_child
from tests.control.factories import make_file
from tests.control.workflows.prompt_files import odd_passes
from tests.source_tree import ROOT

SERVER_BYTES = 256 << 20  # memory limit of the server process, which takes 180 MB with 500 open streams
LIMITS = {"cpu_seconds": 60, "memory_bytes": 192 << 20}
LARGE = b"{}\n" * (1 << 20)  # more than fits into the buffer of a pipe


@pytest.fixture(autouse=True)
def odd_passes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_child_reads_the_whole_file_at_low_priority_without_the_parents_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLIPSTREAM_SECRET_KEY", "secret")

    found = run_in_child(BytesIO(LARGE), odd_passes.report, **LIMITS)

    assert found["pid"] != os.getpid()
    assert found["num_bytes"] == len(LARGE)
    assert found["niceness"] == min(19, os.nice(0) + child.NICENESS)
    assert "secret" not in found["environment"].values()


def test_a_child_may_end_before_the_end_of_the_file() -> None:
    source = BytesIO(LARGE * 8)

    assert run_in_child(source, odd_passes.read_nothing, **LIMITS) == {}
    assert source.tell() < len(LARGE) * 8, "the rest of the file must not be read"


def test_the_refusal_of_a_file_by_a_child_is_passed_on() -> None:
    with pytest.raises(FileRefused) as refusal:
        run_in_child(BytesIO(LARGE), odd_passes.refuse, **LIMITS)

    assert (refusal.value.code, refusal.value.message) == ("a_code", "line 3: a message")


@pytest.mark.parametrize(
    ("one_pass", "limits"),
    [
        (odd_passes.compute_forever, {**LIMITS, "cpu_seconds": 1}),
        (odd_passes.fill_memory, {**LIMITS, "memory_bytes": 64 << 20}),
    ],
)
def test_a_child_that_needs_too_much_time_or_memory_is_stopped(one_pass: child.Pass, limits: dict[str, int]) -> None:
    with pytest.raises(LimitExceeded):
        run_in_child(BytesIO(LARGE), one_pass, **limits)


@pytest.mark.parametrize(
    ("one_pass", "cause"), [(odd_passes.crash, "RuntimeError: a bug"), (odd_passes.be_killed, f"{-signal.SIGKILL}")]
)
def test_a_child_that_dies_for_another_reason_is_reported_with_the_reason(one_pass: child.Pass, cause: str) -> None:
    with pytest.raises(ChildDied, match=cause):
        run_in_child(BytesIO(LARGE), one_pass, **LIMITS)


def test_a_child_ends_when_its_file_cannot_be_read_further(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]  # generic only in its stubs
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    class Broken:
        def read(self, size: int, /) -> bytes:
            raise OSError("the storage is lost")

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(OSError, match="the storage is lost"):
        run_in_child(Broken(), odd_passes.compute_forever, **LIMITS)

    assert [process.returncode for process in started] == [-signal.SIGKILL]


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_no_child_outlives_a_server_that_is_killed() -> None:
    program = (
        "import pathlib, threading, time\n"
        "from control.workflows.datasets.passes import all_rows\n"
        "from control.workflows.prompt_files.child import run_in_child\n"
        "class Endless:\n"
        "    num_blocks = 0\n"
        "    def read(self, size):\n"
        "        self.num_blocks += 1\n"
        "        if self.num_blocks == 3:\n"
        "            print(pathlib.Path('/proc/thread-self/children').read_text(), flush=True)\n"
        "            time.sleep(600)\n"
        "        return bytes(size)\n"
        f"run_in_child(Endless(), all_rows, **{LIMITS!r})\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "platform")}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()

    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline, f"process {pid} outlived its parent"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.django_db
def test_a_file_that_needs_too_much_memory_is_refused_with_advice(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pass, "MEMORY_BYTES", 36 << 20)
    file = make_file(organization, b'{"messages": [' + b"[]," * 300_000 + b"[]]}\n")

    response = client.post("/v1/datasets", {"file_id": file.pk}, content_type="application/json")

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "file_too_complex", "file_id")
    assert "Split it into smaller files" in error["message"]


def test_the_processes_for_files_fit_into_the_memory_of_the_servers_container() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/slipstream/values.yaml").read_text())
    assert values["web"]["resources"]["limits"]["memory"] == "2Gi"
    readers = reader.MAX_READERS * rendering.MEMORY_BYTES
    assert file_work.MAX_REQUESTS * file_pass.MEMORY_BYTES + readers + SERVER_BYTES <= 2 << 30


@pytest.mark.django_db
def test_a_child_that_dies_is_logged_and_the_caller_may_try_again(organization: Organization) -> None:
    file = make_file(organization, LARGE)

    with capture_logs() as logs, pytest.raises(ApiError) as failure:
        file_pass.file_pass(file, odd_passes.crash, param="file_id")

    assert (failure.value.status, failure.value.code, failure.value.param) == (503, "file_not_read", "file_id")
    assert failure.value.headers == {"Retry-After": "2"}
    assert [(entry["log_level"], entry["file_id"]) for entry in logs] == [("error", file.pk)]
    assert "RuntimeError: a bug" in logs[0]["cause"]


@pytest.mark.django_db
@pytest.mark.parametrize(("num_bytes", "is_child"), [(0, False), (1, True)])
def test_only_a_small_file_is_read_in_the_servers_process(
    organization: Organization, num_bytes: int, is_child: bool
) -> None:
    file = make_file(organization, bytes(file_pass.SMALL_BYTES + num_bytes))

    found = file_pass.file_pass(file, odd_passes.report, param="file_id")

    assert (found["pid"] != os.getpid()) == is_child
    assert found["num_bytes"] == file.size_bytes
