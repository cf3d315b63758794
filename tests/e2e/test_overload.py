"""A real engine behind the real gateway gets more requests than the engine can answer at once."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.stack import Stack, wait_for

pytestmark = pytest.mark.soak

NUM_IN_FLIGHT = 80  # an engine accepts this many requests: 16 running and 64 queued
OVERLOAD_SECONDS, NUM_CALLERS = 600.0, 120
MAX_GROWTH_BYTES = 32 << 20


def body(model: str, max_tokens: int) -> dict[str, Any]:
    return {"model": model, "prompt": "Count on.", "max_tokens": max_tokens}


def http_client(stack: Stack) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    headers = {"Authorization": f"Bearer {stack.key}"}
    return httpx2.AsyncClient(base_url=stack.url, headers=headers, timeout=120.0, limits=limits, trust_env=False)


def test_stopping_a_deployment_completes_its_requests_in_flight(stack: Stack, client: openai.OpenAI) -> None:
    created = client.post("/deployments", cast_to=object, body={"name": "stopping", "model": MODEL})
    assert isinstance(created, dict)
    path = f"/deployments/{created['id']}"

    def state() -> str:
        deployment = client.get(path, cast_to=object)
        assert isinstance(deployment, dict)
        return str(deployment["state"])

    wait_for(lambda: state() == "ready", 90.0, "the deployment is not ready")

    async def request_and_stop() -> tuple[int, list[int]]:
        async with http_client(stack) as http:
            requests = [asyncio.create_task(http.post("/completions", json=body("stopping", 16)))
                     for _ in range(NUM_IN_FLIGHT)]  # fmt: skip
            await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
            in_flight = sum(not task.done() for task in requests)
            assert (await http.post(f"{path}/stop")).status_code < 300
            return in_flight, [response.status_code for response in await asyncio.gather(*requests)]

    in_flight, statuses = asyncio.run(request_and_stop())

    assert in_flight >= NUM_IN_FLIGHT // 2
    assert statuses == [200] * NUM_IN_FLIGHT
    wait_for(lambda: state() == "stopped", 60.0, "the deployment has not stopped")


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.timeout(1800)
def test_ten_minutes_of_overload_leak_no_memory_and_refused_requests_get_a_retry_time(
    stack: Stack, endpoint: str
) -> None:
    engines = [pid for pid in stack.endpoints() if f"--model-name {endpoint}" in _command(pid)]
    watched = [*engines, *stack.processes("uvicorn control.asgi")]
    statuses: Counter[int] = Counter()
    until = time.monotonic() + OVERLOAD_SECONDS

    async def call_again_and_again(http: httpx2.AsyncClient) -> None:
        while time.monotonic() < until:
            response = await http.post("/completions", json=body(endpoint, 32))
            statuses[response.status_code] += 1
            if response.status_code == 429:
                await asyncio.sleep(float(response.headers["retry-after"]) / 4)  # retries earlier than requested

    async def overload() -> tuple[list[int], list[int]]:
        async with http_client(stack) as http:
            callers = [asyncio.create_task(call_again_and_again(http)) for _ in range(NUM_CALLERS)]
            await asyncio.sleep(OVERLOAD_SECONDS / 4)  # by then caches are filled and threads are started
            bytes_at_first = [resident_bytes(pid) for pid in watched]
            await asyncio.gather(*callers)
            return bytes_at_first, [resident_bytes(pid) for pid in watched]

    bytes_at_first, bytes_at_end = asyncio.run(overload())

    assert set(statuses) == {200, 429}, statuses
    assert len(watched) >= 2
    for pid, before, after in zip(watched, bytes_at_first, bytes_at_end, strict=True):
        assert after - before < MAX_GROWTH_BYTES, f"{_command(pid)[:60]} grew from {before:,} to {after:,} bytes"


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
