"""Engines that are killed while they answer: callers get an error at once, and the engines are restarted."""

import json
import os
import queue
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.db.models import Sum

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.usage.models import UsageRecord
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.supervisor import Supervisor
from tests.control.serving.deployments.support import State, identity_of, tick_until_state
from tests.control.serving.gateway.test_gateway import chat, wait_for

STREAMS_EACH = 2
LONG = {"temperature": 0, "max_tokens": 30_000, "ignore_eos": True}  # a real engine needs a minute for so many tokens
USAGE_IN_EVERY_CHUNK = {"include_usage": True, "continuous_usage_stats": True}


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("control.serving.deployments.observations.backoff_seconds", lambda num_crashes: 0.0)


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize(
    ("each_deployment", "num_kills"),
    [("fake engine", 10), pytest.param("real engine", 2, marks=pytest.mark.wide)],
    indirect=["each_deployment"],
)
def test_killed_engines_end_their_streams_with_an_error_and_are_started_again(
    base_url: str, token: str, each_deployment: Deployment, supervisor: Supervisor, num_kills: int
) -> None:
    is_real = "engine.server" in engine_command(each_deployment)
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def request_stream() -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        body = chat("linger", stream=True, stream_options=USAGE_IN_EVERY_CHUNK, **LONG)
        with client.stream("POST", "/chat/completions", json=body) as response:
            for line in filter(None, response.iter_lines()):
                before = num_tokens_of(events[-1]) if events else 0
                events.append(json.loads(line.removeprefix("data: ")))
                if before < 2 <= num_tokens_of(events[-1]):  # once per stream: `linger` pauses after two tokens
                    begun.put(None)
        return events

    def request_answer() -> httpx2.Response:
        return client.post("/chat/completions", json=chat("linger", **LONG))

    beginning = plain_text(each_deployment, "linger", max_tokens=1000) if is_real else "token0 token1 "
    num_tokens = 0
    headers = {"Authorization": f"Bearer {token}"}
    with (
        httpx2.Client(base_url=base_url, headers=headers, timeout=60, trust_env=False) as client,
        ThreadPoolExecutor(3) as pool,
    ):
        for _ in range(num_kills):
            streams = [pool.submit(request_stream) for _ in range(STREAMS_EACH)]
            answer = pool.submit(request_answer)
            for _ in streams:
                begun.get(timeout=60)

            os.kill(identity_of(each_deployment).pid, signal.SIGKILL)
            killed_at = time.monotonic()

            for stream in streams:
                *chunks, error = stream.result(timeout=60)
                assert error["error"]["code"] == "upstream_terminated"
                assert beginning.startswith(text_of(chunks)[:200])
                num_tokens += num_tokens_of(chunks[-1])
            assert answer.result(timeout=60).status_code == 502
            assert is_real or time.monotonic() - killed_at < 2
            tick_until_state(supervisor, each_deployment, State.PROVISIONING)
            assert is_real or time.monotonic() - killed_at < 2
            tick_until_state(supervisor, each_deployment, State.READY, seconds=120)
            assert is_real or time.monotonic() - killed_at < 5
            Replica.objects.update(crashes=[])  # five crashes within ten minutes would be a crash loop

        last = client.post("/chat/completions", json=chat("hello", temperature=0, max_tokens=24)).json()
    if is_real:
        assert last["choices"][0]["message"]["content"] == plain_text(each_deployment, "hello", max_tokens=24)
    check_usage(num_requests=num_kills * STREAMS_EACH + 1, num_tokens=num_tokens + num_tokens_of(last))


def engine_command(deployment: Deployment) -> str:
    return Path(f"/proc/{identity_of(deployment).pid}/cmdline").read_text()


def plain_text(deployment: Deployment, content: str, *, max_tokens: int) -> str:
    from tests.plain_engine import plain_answers  # imports torch, which other tests of the control plane do not need

    return plain_answers(Path(deployment.base_model.path), [content], max_tokens=max_tokens)[0].text


def num_tokens_of(chunk: dict[str, Any]) -> int:
    return int((chunk.get("usage") or {}).get("completion_tokens", 0))


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)


def check_usage(*, num_requests: int, num_tokens: int) -> None:
    """Waits until the usage of all answers is written, and checks that each token is counted once."""
    wait_for(lambda: UsageRecord.objects.aggregate(sum=Sum("requests"))["sum"] == num_requests)
    assert UsageRecord.objects.aggregate(sum=Sum("output_tokens"))["sum"] == num_tokens
    lines = LedgerLine.objects.filter(subject=Subject.ENDPOINT_OUTPUT_TOKENS)
    assert lines.aggregate(sum=Sum("count"))["sum"] == num_tokens
