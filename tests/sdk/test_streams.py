"""Streams of chat answers, events and results, and what the client does when their connection breaks."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any

import httpx2
import pytest

from slipstream import APIConnectionError, APIStreamError, AsyncClient
from tests.sdk.api import ScriptedApi, failure, ok, page, pipeline_json

MESSAGES = [{"role": "user", "content": "2+2?"}]


class Pieces(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A response body that arrives in the given pieces; an exception among them breaks the connection."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def streamed(*pieces: bytes | Exception) -> httpx2.Response:
    return httpx2.Response(200, stream=Pieces(*pieces))


def chunk(text: str) -> bytes:
    values = {"id": "c", "model": "math", "choices": [{"index": 0, "delta": {"content": text}}]}
    return b"data: " + json.dumps(values, ensure_ascii=False).encode() + b"\n\n"


def event(number: int) -> bytes:
    values = {"id": f"evt_{number}", "type": "batch.completed", "created_at": 1, "data": {"id": "batch_1"}}
    return f"id: evt_{number}\nevent: batch.completed\ndata: {json.dumps(values)}\n\n".encode()


def test_a_streamed_answer_does_not_depend_on_network_chunks() -> None:
    body = chunk("vi") + b": keep-alive\n\n" + chunk("er ü") + b"data: [DONE]\n\n"
    api = ScriptedApi(streamed(*(body[index : index + 1] for index in range(len(body)))))  # single bytes

    pieces = list(api.client().chat.stream(model="math", messages=MESSAGES, temperature=0))

    assert "".join(piece.text for piece in pieces) == "vier ü"
    expected = {"model": "math", "messages": MESSAGES, "temperature": 0, "stream": True}
    assert api.body() == expected | {"stream_options": {"include_usage": True}}


def test_an_answer_without_streaming_is_one_object() -> None:
    choices = [{"index": 0, "message": {"role": "assistant", "content": "4"}}]
    api = ScriptedApi(ok({"id": "c", "model": "math", "choices": choices, "usage": {"total_tokens": 9}}))

    assert api.client().chat.create(model="math", messages=MESSAGES).text == "4"


def test_an_error_event_in_a_stream_raises_an_error() -> None:
    error = b'data: {"error": {"message": "the process died", "code": "upstream_terminated"}}\n\n'

    with pytest.raises(APIStreamError, match="the process died") as caught:
        list(ScriptedApi(streamed(chunk("4"), error)).client().chat.stream(model="math", messages=MESSAGES))

    assert caught.value.code == "upstream_terminated"


def test_a_stream_that_ends_without_done_raises_an_error() -> None:
    with pytest.raises(APIStreamError, match="without"):
        list(ScriptedApi(streamed(chunk("4"))).client().chat.stream(model="math", messages=MESSAGES))


def test_an_interrupted_answer_is_not_retried() -> None:
    api = ScriptedApi(streamed(chunk("4"), httpx2.ReadError("reset")))

    with pytest.raises(APIConnectionError, match="reset"):
        list(api.client().chat.stream(model="math", messages=MESSAGES))


def test_a_broken_event_stream_continues_after_the_last_received_event() -> None:
    api = ScriptedApi(
        streamed(event(1), event(2)[:20], httpx2.ReadError("reset")), streamed(event(2)), streamed(event(3))
    )

    events = list(islice(api.client().events.stream(types=["batch.*"]), 3))

    assert [received.id for received in events] == ["evt_1", "evt_2", "evt_3"]
    assert [request.headers.get("last-event-id") for request in api.requests] == [None, "evt_1", "evt_2"]
    assert api.requests[0].headers["accept"] == "text/event-stream"


def test_each_batch_result_is_yielded_once_despite_a_broken_connection() -> None:
    rows = [json.dumps({"custom_id": str(number)}).encode() + b"\n" for number in range(3)]
    api = ScriptedApi(streamed(rows[0], rows[1][:5], httpx2.ReadError("reset")), streamed(rows[1], rows[2]))

    results = list(api.client().batches.results("batch_1", follow=True))

    assert [row["custom_id"] for row in results] == ["0", "1", "2"]
    assert [dict(request.url.params) for request in api.requests] == [
        {"after": "0", "follow": "true"},
        {"after": "1", "follow": "true"},
    ]


def test_the_asynchronous_client_retries_reads_all_pages_streams_and_waits() -> None:
    api = ScriptedApi(
        failure(503),
        page({"id": "b", "created": 1, "owned_by": "us"}, has_more=True),
        page({"id": "a", "created": 1, "owned_by": "us"}),
        streamed(chunk("4"), b"data: [DONE]\n\n"),
        ok(pipeline_json()),
        ok(pipeline_json()),
        ok(pipeline_json(status="live")),
    )
    seen: list[Any] = []

    async def talk() -> None:
        async with AsyncClient(
            "http://api.test/v1", "k", transport=httpx2.MockTransport(api), sleep=_recording_sleep(api.slept)
        ) as client:
            assert [model.id async for model in client.models.list()] == ["b", "a"]
            assert [piece.text async for piece in client.chat.stream(model="math", messages=MESSAGES)] == ["4"]
            run = await client.pipelines.create(name="math", model="tiny", prompts_file="file-1")
            pipeline = await run.wait(on_progress=seen.append)
            assert pipeline.status == "live"

    asyncio.run(talk())

    assert [pipeline.status for pipeline in seen] == ["distilling", "live"]
    assert (len(api.slept), api.slept[-1]) == (2, 1.0)


def _recording_sleep(slept: list[float]) -> Any:
    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    return sleep
