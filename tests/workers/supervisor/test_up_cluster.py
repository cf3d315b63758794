"""`manage.py up --cluster` runs engines on a Ray cluster of this machine, whose head may be killed. Fake engines."""

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from control.serving.deployments.launchers.processes import (
    ACTOR_NAME_VARIABLE,
    NAME_VARIABLE,
    endpoint_processes,
)
from tests.control.models.catalog.test_folder import make_folder
from tests.e2e.stack import Stack, assert_nothing_is_left, start_stack, wait_for

SECONDS = 60.0
ENVIRONMENT = {"DJANGO_SETTINGS_MODULE": "tests.workers.supervisor.engine_settings", "SLIPSTREAM_DEVICE": "cpu"}

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the packages of requirements-ray.txt"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all addresses of 127.0.0.0/8"),
]


def request(stack: Stack, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {stack.key}"}
    answer = httpx2.request(method, stack.url + path, json=body, headers=headers, trust_env=False, timeout=30.0)
    assert answer.status_code < 300, answer.text
    return dict(answer.json())


def wait_until_ready(stack: Stack, deployment: str) -> None:
    wait_for(lambda: request(stack, "GET", f"/deployments/{deployment}")["state"] == "ready", SECONDS, "not ready")


def chat(stack: Stack) -> None:
    messages = [{"role": "user", "content": "hello"}]
    assert request(stack, "POST", "/chat/completions", {"model": "endpoint", "messages": messages})["usage"]


def engines_of(deployment: str, variable: str = ACTOR_NAME_VARIABLE) -> set[int]:
    """The processes of the engines and their keepers."""
    return {pid for pid, name in endpoint_processes(variable).items() if name.startswith(deployment)}


def head_processes(stack: Stack) -> list[int]:
    """The processes of the head that hold its state and connect the nodes."""
    return [pid for pid in stack.processes() if is_of_head(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))]


def is_of_head(words: list[bytes]) -> bool:
    program = Path(os.fsdecode(words[0])).name
    return program == "gcs_server" or (program == "raylet" and b"--head" in words)


def test_engines_survive_the_end_of_the_head_and_nothing_is_left_after_the_end(tmp_path: Path) -> None:
    model = ("--model", f"tiny={make_folder(tmp_path / 'model')}")
    stack = start_stack(tmp_path / "data", "--cluster", *model, **ENVIRONMENT)
    try:
        deployment = request(stack, "POST", "/deployments", {"name": "endpoint", "model": "tiny", "replicas": 2})["id"]
        wait_until_ready(stack, deployment)
        engines = engines_of(deployment)
        hosts = {host for pid in engines for host in ("127.0.0.2", "127.0.0.3") if host.encode() in arguments(pid)}
        assert hosts == {"127.0.0.2", "127.0.0.3"}

        stack.process.send_signal(signal.SIGSTOP)  # it would start the head again after a second
        killed = head_processes(stack)
        assert len(killed) == 2
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        chat(stack)
        assert engines_of(deployment) == engines
        stack.process.send_signal(signal.SIGCONT)
        wait_for(lambda: len(set(head_processes(stack)) - set(killed)) == 2, SECONDS, "the head is not back")
        request(stack, "PATCH", f"/deployments/{deployment}", {"replicas": 3})
        wait_for(lambda: engines_of(deployment) > engines, SECONDS, "no engine was started")
        wait_until_ready(stack, deployment)
        assert engines_of(deployment) > engines

        assert stack.stop() == 0
        assert_nothing_is_left(stack)
        assert engines_of(deployment) == set()
    finally:
        stack.process.kill()
        stack.process.wait()

    stack = start_stack(tmp_path / "data", **ENVIRONMENT)
    try:
        wait_until_ready(stack, deployment)
        chat(stack)
        assert engines_of(deployment, NAME_VARIABLE)
        assert stack.stop() == 0
    finally:
        stack.process.kill()
        stack.process.wait()


def arguments(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
