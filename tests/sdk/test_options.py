"""Options of single requests, raw responses, pages, unknown members of responses, and the bar that `wait` shows."""

import asyncio
import io
from pathlib import Path

import httpx2
import pytest
from rich.console import Console

from slipstream import AsyncClient
from slipstream.progress import Watch
from slipstream.types import File
from tests.sdk.api import ScriptedApi, batch_json, failure, file_json, ok, page, pipeline_json, stage_json


def test_with_options_changes_only_the_returned_client() -> None:
    api = ScriptedApi(ok(batch_json()), ok(batch_json()), failure(503))
    client = api.client()
    changed = client.with_options(headers={"x-team": "a"}, idempotency_key="once", timeout_seconds=7)

    changed.batches.create(input_file_id="file-1")
    client.batches.create(input_file_id="file-1")
    with pytest.raises(Exception, match="no"):
        changed.with_options(headers={"x-run": "2"}, max_retries=0).batches.cancel("batch_1")

    first, second, third = api.requests
    assert (first.headers["x-team"], first.headers["idempotency-key"]) == ("a", "once")
    assert first.extensions["timeout"]["read"] == 7
    assert "x-team" not in second.headers
    assert second.headers["idempotency-key"] != "once"
    assert second.extensions["timeout"]["read"] == 600
    assert (third.headers["x-team"], third.headers["x-run"]) == ("a", "2")


def test_a_retried_post_keeps_the_given_idempotency_key() -> None:
    api = ScriptedApi(failure(503), ok(batch_json()))

    api.client().with_options(idempotency_key="once").batches.create(input_file_id="file-1")

    assert [request.headers["idempotency-key"] for request in api.requests] == ["once", "once"]


def test_a_raw_response_has_status_headers_and_body() -> None:
    api = ScriptedApi(ok(file_json(), **{"x-request-id": "req-1"}))

    response = api.client().with_raw_response.files.retrieve("file-1")

    assert (response.status, response.headers["x-request-id"]) == (200, "req-1")
    assert b'"file-1"' in response.content
    assert isinstance(response.value, File)


def test_a_raw_response_of_a_stream_has_no_content(tmp_path: Path) -> None:
    api = ScriptedApi(httpx2.Response(200, content=iter([b"one ", b"line"])))

    response = api.client().with_raw_response.files.download("file-1", tmp_path / "a.jsonl")

    assert (response.status, response.content) == (200, b"")
    assert (tmp_path / "a.jsonl").read_bytes() == b"one line"


def test_an_asynchronous_client_has_raw_responses_options_and_pages() -> None:
    api = ScriptedApi(ok(file_json()), page(file_json(id="file-2"), has_more=True), page(file_json(id="file-1")))

    async def talk() -> None:
        async with AsyncClient("http://api.test/v1", "sk", transport=httpx2.MockTransport(api)) as client:
            response = await client.with_options(headers={"x-team": "a"}).with_raw_response.files.retrieve("file-1")
            pages = [page async for page in client.files.list().pages()]
        assert (response.status, response.value.id) == (200, "file-1")
        assert [[file.id for file in page.data] for page in pages] == [["file-2"], ["file-1"]]

    asyncio.run(talk())

    assert api.requests[0].headers["x-team"] == "a"


def test_pages_are_objects_and_are_requested_one_by_one() -> None:
    api = ScriptedApi(page(file_json(id="file-2"), has_more=True), page(file_json(id="file-1")))

    pages = api.client().files.list().pages()
    first = next(pages)

    assert ([file.id for file in first.data], first.has_more, first.last_id) == (["file-2"], True, "file-2")
    assert len(api.requests) == 1
    assert [[file.id for file in page.data] for page in pages] == [["file-1"]]
    assert api.requests[1].url.params["after"] == "file-2"


def test_members_that_the_client_does_not_know_are_kept_in_extra() -> None:
    api = ScriptedApi(ok(file_json(shelf="B")))

    file = api.client().files.retrieve("file-1")

    assert file.extra["shelf"] == "B"
    assert "shelf" not in repr(file)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_waiting_shows_a_bar_only_in_a_terminal(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    written = io.StringIO()
    monkeypatch.setattr("slipstream.progress.Console", lambda **_: Console(file=written, force_terminal=is_terminal))
    running = pipeline_json(status="distilling", stages=[stage_json("distil", "running")])
    api = ScriptedApi(ok(running), ok(pipeline_json(status="succeeded", stages=[stage_json("distil", "succeeded")])))

    api.client().pipelines.wait("pipe_1")

    assert ("distil succeeded" in written.getvalue()) is is_terminal


def test_a_bar_shows_the_done_rows_of_a_batch() -> None:
    written = io.StringIO()
    api = ScriptedApi(ok(batch_json()))

    with Watch(Console(file=written, force_terminal=True, width=120)) as watch:
        watch.show(api.client().batches.retrieve("batch_1"))

    assert "batch_1 in_progress" in written.getvalue()
    assert "5/10 rows" in written.getvalue()
