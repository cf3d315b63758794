"""Slow and large request bodies may take only a limited amount of memory, connections and time."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from pytest_django import Settings

from control.asgi import application
from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.serving.gateway import large_bodies, open_requests
from control.serving.gateway.completion_request import CompletionRequest, read
from control.serving.gateway.large_bodies import SMALL_BYTES, BodyReader
from control.serving.gateway.upstream import Target, forward
from control.tenants.async_requests import handler
from tests.control.serving.gateway.test_early_refusal import Caller
from tests.control.serving.gateway.test_gateway import chat, wait_for
from tests.control.serving.gateway.test_limits import open_stream

CHAT = "/v1/chat/completions"


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        yield client


@pytest.fixture
def two_open(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"max_open_completions": 2})


def slow_caller(base_url: str, token: str, first: bytes = b"{") -> Caller:
    """Announces a body of 1,000 bytes, but sends only the bytes `first`."""
    headers = ("Content-Length: 1000", f"Authorization: Bearer {token}")
    caller = Caller(base_url, "/v1/chat/completions", *headers)
    caller.socket.sendall(first)
    return caller


def num_arriving() -> int:
    state = application._gateway._state
    return 0 if state is None else state.open_requests._num_arriving.total()


@pytest.mark.usefixtures("deployment", "two_open")
def test_incomplete_bodies_do_not_count_as_open_requests_and_have_a_limit_of_their_own(
    base_url: str, token: str, client: httpx2.Client
) -> None:
    slow = [slow_caller(base_url, token)]
    wait_for(lambda: num_arriving() == 1)
    assert client.post("/chat/completions", json=chat("hello")).status_code == 200
    slow.append(slow_caller(base_url, token))
    wait_for(lambda: num_arriving() == 2)

    refused = slow_caller(base_url, token).response()

    assert refused.startswith("HTTP/1.1 429 ")
    assert "too_many_streams" in refused
    for caller in slow:
        caller.socket.close()
    wait_for(lambda: num_arriving() == 0)
    assert client.post("/chat/completions", json=chat("hello")).status_code == 200


def test_a_body_that_does_not_arrive_in_time_is_refused_and_the_connection_closed(
    base_url: str, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler, "BODY_SECONDS", 0.2)

    response = slow_caller(base_url, token).response()

    assert response.startswith("HTTP/1.1 408 ")
    assert "connection: close" in response.lower()
    assert "request_timeout" in response
    assert num_arriving() == 0


@pytest.mark.usefixtures("deployment")
def test_the_bodies_of_requests_that_wait_for_an_answer_share_a_limit_that_excludes_begun_streams(
    base_url: str, token: str, client: httpx2.Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_requests, "MAX_LARGEST_BODIES", 1)
    settings.SLIPSTREAM = get_config().model_copy(update={"max_body_bytes": 1500})
    with ExitStack() as opened:
        for _ in range(2):
            open_stream(client, opened, padding="x" * 1000)  # the engine has begun to answer these requests
        slow = slow_caller(base_url, token, first=b"x" * 900)
        wait_for(lambda: num_bytes_held() == 900)

        refused = client.post("/chat/completions", json=chat("hello", padding="x" * 1000))

        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_body_bytes")
        slow.socket.close()
    wait_for(lambda: num_bytes_held() == 0)
    assert client.post("/chat/completions", json=chat("hello", padding="x" * 1000)).status_code == 200


def num_bytes_held() -> int:
    state = application._gateway._state
    return 0 if state is None else state.open_requests._num_bytes.total()


def test_a_body_that_has_been_sent_is_freed_while_the_stream_of_its_answer_continues() -> None:
    is_over = asyncio.Event()

    async def engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        is_over.set()

    async def run() -> None:
        async with await asyncio.start_server(engine, "127.0.0.1", 0) as server:
            target = Target(host="127.0.0.1", port=server.sockets[0].getsockname()[1], token="t")
            body = bytes(1000)
            num_references = sys.getrefcount(body)
            answer = await forward(target, "/v1/completions", body, request_id="r", memory=None)
            assert isinstance(answer.body, AsyncGenerator)
            assert await anext(answer.body) == b"data: 1\n\n"
            assert sys.getrefcount(body) == num_references
            await answer.body.aclose()
            await is_over.wait()

    asyncio.run(run())


BODIES = [
    {"model": "fast", "messages": [{"role": "user", "content": "ab" * SMALL_BYTES}], "stream": True, "max_tokens": 3},
    {"model": "fast", "prompt": [[]] * SMALL_BYTES, "n": 2},
]


@pytest.mark.parametrize("body", BODIES)
def test_a_large_body_is_read_like_a_small_one(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    assert len(raw) > SMALL_BYTES

    assert asyncio.run(BodyReader().read(raw, CHAT, organization_id="org")) == read(raw, CHAT)


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b"{" + b" " * SMALL_BYTES, "invalid_json", None),
        (b"[" * (SMALL_BYTES + 1), "invalid_json", None),
        (b"{}" + b" " * SMALL_BYTES, "missing_required_parameter", "model"),
    ],
)
def test_a_large_invalid_body_gets_the_same_error_as_a_small_one(raw: bytes, code: str, param: str | None) -> None:
    with pytest.raises(ApiError) as refused:
        asyncio.run(BodyReader().read(raw, CHAT, organization_id="org"))

    assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, param)


def test_a_body_that_needs_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "MEMORY_BYTES", 64 * 2**20)
    raw = b"[" + b"[]," * 2_000_000 + b"[]]"

    with pytest.raises(ApiError, match="too many values"):
        asyncio.run(BodyReader().read(raw, CHAT, organization_id="org"))


READS_FOR_A_MINUTE = """
import sys, time
from control.serving.gateway import completion_request
read, ends_at = completion_request.read, time.monotonic() + 60
def read_slowly(raw, path):
    while time.monotonic() < ends_at:
        pass
    return read(raw, path)
completion_request.read = read_slowly
completion_request.main(sys.argv[1], *map(int, sys.argv[2:]))
"""


def test_a_body_that_needs_too_much_processor_time_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_bodies, "CPU_SECONDS", 1)
    monkeypatch.setattr(large_bodies, "_COMMAND", (sys.executable, "-S", "-c", READS_FOR_A_MINUTE))
    raw = b'{"model": "m", "prompt": "' + b"x" * SMALL_BYTES + b'"}'

    with pytest.raises(ApiError, match="too many values"):
        asyncio.run(BodyReader().read(raw, CHAT, organization_id="org"))


def test_the_event_loop_goes_on_while_a_large_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(large_bodies, "read")  # this process must not parse: that would hold the interpreter's lock
    raw = b'{"model": "m", "messages": [' + b"[]," * 2_500_000 + b"[]]}"  # the parser needs half a second or more

    async def run() -> int:
        reading = asyncio.create_task(BodyReader().read(raw, CHAT, organization_id="org"))
        num_turns = 0
        while not reading.done():
            await asyncio.sleep(0.001)
            num_turns += 1
        assert (await reading)[0].num_parts == 2_500_001
        return num_turns

    assert asyncio.run(run()) > 10


def test_only_one_large_body_of_an_organization_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = list[bytes](), threading.Event()

    def read_large(raw: bytes, path: str) -> tuple[CompletionRequest, bytes]:
        begun.append(raw[:1])
        assert may_end.wait(30)
        return read(b'{"model": "m"}', CHAT)

    monkeypatch.setattr(large_bodies, "_read_large", read_large)

    async def run() -> None:
        reader = BodyReader()
        bodies = [("loud", b"l")] * 10 + [("quiet", b"q")]
        readings = [asyncio.create_task(reader.read(first * (SMALL_BYTES + 1), CHAT, organization_id=name))
                    for name, first in bodies]  # fmt: skip
        while len(begun) < 2:
            await asyncio.sleep(0.001)
        assert sorted(begun) == [b"l", b"q"]
        may_end.set()
        await asyncio.gather(*readings)

    asyncio.run(run())


@pytest.mark.usefixtures("base_url")
def test_in_a_running_server_a_thread_that_computes_releases_the_interpreter_within_a_millisecond() -> None:
    assert sys.getswitchinterval() <= 0.001
