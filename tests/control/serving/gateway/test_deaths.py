"""Engines that are killed while they answer: callers get an error at once, and the engines are restarted."""

import json
import os
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from control.serving.deployments.models import Deployment
from control.serving.deployments.supervisor import Supervisor
from tests.control.serving.deployments.support import State, identity_of, tick_until_state
from tests.control.serving.gateway.test_gateway import chat, events_of

NUM_KILLS, STREAMS_EACH = 10, 2


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.serving.deployments.observations.backoff_seconds", lambda num_crashes: 0.0)


@pytest.mark.usefixtures("no_backoff")
def test_ten_killed_engines_end_twenty_streams_with_an_error_and_are_started_again(
    base_url: str, token: str, deployment: Deployment, supervisor: Supervisor
) -> None:
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def request_stream() -> httpx2.Response:
        with client.stream("POST", "/chat/completions", json=chat("linger", stream=True)) as response:
            chunks = response.iter_raw()
            first = next(chunks)
            begun.put(None)
            return httpx2.Response(response.status_code, content=b"".join((first, *chunks)))

    def request_answer() -> httpx2.Response:
        return client.post("/chat/completions", json=chat("linger"))

    headers = {"Authorization": f"Bearer {token}"}
    with httpx2.Client(base_url=base_url, headers=headers, trust_env=False) as client, ThreadPoolExecutor(3) as pool:
        for _ in range(NUM_KILLS):
            streams = [pool.submit(request_stream) for _ in range(STREAMS_EACH)]
            answer = pool.submit(request_answer)
            for _ in streams:
                begun.get(timeout=10)

            os.kill(identity_of(deployment).pid, signal.SIGKILL)
            killed_at = time.monotonic()

            for stream in streams:
                events = events_of(stream.result(timeout=10))
                assert json.loads(events[-1])["error"]["code"] == "upstream_terminated"
                assert "[DONE]" not in events
            assert answer.result(timeout=10).status_code == 502
            assert time.monotonic() - killed_at < 2
            tick_until_state(supervisor, deployment, State.PROVISIONING)
            assert time.monotonic() - killed_at < 2
            tick_until_state(supervisor, deployment, State.READY)
            assert time.monotonic() - killed_at < 5
            Deployment.objects.update(crashes=[])  # five crashes within ten minutes would be a crash loop
