"""The client's requests: authentication, retries, errors, pages, uploads and downloads."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

import slipstream
from slipstream import Client
from slipstream.errors import (
    APIConnectionError,
    APIResponseError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    InternalServerError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitError,
    SlipstreamError,
    UnprocessableEntityError,
)
from tests.sdk.api import ScriptedApi, deployment_json, failure, file_json, ok, page


def test_every_request_has_the_api_key_and_the_path_of_the_base_url() -> None:
    api = ScriptedApi(ok(file_json()))

    api.client().files.retrieve("file-1")

    assert str(api.requests[0].url) == "http://api.test/v1/files/file-1"
    assert api.requests[0].headers["authorization"] == "Bearer sk_live_secret"


def test_url_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_BASE_URL", "http://env.test/v1/")
    monkeypatch.setenv("SLIPSTREAM_API_KEY", "sk_env")
    api = ScriptedApi(page())

    with Client(transport=httpx2.MockTransport(api)) as client:
        assert list(client.models.list()) == []

    assert str(api.requests[0].url).startswith("http://env.test/v1/models")
    assert api.requests[0].headers["authorization"] == "Bearer sk_env"


@pytest.mark.parametrize(("url", "key", "missing"), [(None, "k", "base_url"), ("http://x/v1", None, "api_key")])
def test_the_error_for_a_client_without_url_or_key_names_the_missing_argument(
    monkeypatch: pytest.MonkeyPatch, url: str | None, key: str | None, missing: str
) -> None:
    monkeypatch.delenv("SLIPSTREAM_BASE_URL", raising=False)
    monkeypatch.delenv("SLIPSTREAM_API_KEY", raising=False)

    with pytest.raises(SlipstreamError, match=missing):
        Client(url, key)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_transient_errors_are_retried(status: int) -> None:
    api = ScriptedApi(failure(status), failure(status), ok(file_json()))

    assert api.client().files.retrieve("file-1").id == "file-1"

    assert len(api.slept) == 2
    assert 0.3 < api.slept[0] <= 0.5 < api.slept[1] <= 1.0  # the pauses double from 0.5 s, minus up to a quarter


def test_by_default_the_third_failure_is_raised() -> None:
    api = ScriptedApi(failure(503), failure(503), failure(503, "down"))

    with pytest.raises(InternalServerError, match="down"):
        api.client().files.retrieve("file-1")


def test_the_client_pauses_for_the_time_in_retry_after() -> None:
    api = ScriptedApi(failure(429, retry_after="7"), failure(429, retry_after_ms="1500"), ok(file_json()))

    api.client().files.retrieve("file-1")

    assert api.slept == [7.0, 1.5]


def test_an_unreasonably_long_pause_in_retry_after_is_ignored() -> None:
    api = ScriptedApi(failure(429, retry_after="86400"), ok(file_json()))

    api.client().files.retrieve("file-1")

    assert api.slept[0] <= 0.5


def test_the_header_x_should_retry_overrides_the_status() -> None:
    never_retried = ScriptedApi(failure(503, x_should_retry="false"))
    with pytest.raises(InternalServerError):
        never_retried.client().files.retrieve("file-1")

    retried = ScriptedApi(failure(400, x_should_retry="true"), ok(file_json()))
    assert retried.client().files.retrieve("file-1").id == "file-1"


def test_a_get_is_repeated_after_a_broken_connection() -> None:
    api = ScriptedApi(httpx2.ReadError("reset"), ok(file_json()))

    assert api.client().files.retrieve("file-1").id == "file-1"


def test_a_repeated_post_has_the_same_idempotency_key() -> None:
    api = ScriptedApi(httpx2.ReadError("reset"), failure(503), ok(deployment_json()), ok(deployment_json()))
    client = api.client()

    client.deployments.create(name="math", model="tiny")
    client.deployments.create(name="math", model="tiny")

    keys = [request.headers["idempotency-key"] for request in api.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]


def test_a_get_has_no_idempotency_key() -> None:
    api = ScriptedApi(ok(file_json()))

    api.client().files.retrieve("file-1")

    assert "idempotency-key" not in api.requests[0].headers


def test_a_timeout_raises_api_timeout_error() -> None:
    api = ScriptedApi(httpx2.ReadTimeout("slow"))

    with pytest.raises(APITimeoutError):
        api.client(max_retries=0).files.retrieve("file-1")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequestError),
        (401, AuthenticationError),
        (403, PermissionDeniedError),
        (404, NotFoundError),
        (409, ConflictError),
        (418, APIStatusError),
        (422, UnprocessableEntityError),
        (429, RateLimitError),
        (500, InternalServerError),
        (599, InternalServerError),
    ],
)
def test_each_error_status_raises_the_matching_exception_class(status: int, kind: type[APIStatusError]) -> None:
    api = ScriptedApi(failure(status, "because", code="the_code", x_request_id="req_7"))

    with pytest.raises(APIStatusError) as caught:
        api.client(max_retries=0).files.retrieve("file-1")

    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.code, caught.value.request_id) == (status, "the_code", "req_7")
    assert str(caught.value) == f"{status}: because (request req_7)"


def test_an_error_status_with_an_html_page_raises_the_exception_of_the_status() -> None:
    api = ScriptedApi(httpx2.Response(404, text="<html>"))

    with pytest.raises(NotFoundError, match="no reason"):
        api.client().files.retrieve("file-1")


@pytest.mark.parametrize("answer", [httpx2.Response(200, text="<html>"), ok(["a", "list"])])
def test_a_response_that_is_not_an_object_is_an_error(answer: httpx2.Response) -> None:
    with pytest.raises(APIResponseError, match="expected a JSON object"):
        ScriptedApi(answer).client().files.retrieve("file-1")


def test_a_list_fetches_all_pages() -> None:
    api = ScriptedApi(page(file_json(id="file-3"), file_json(id="file-2"), has_more=True), page(file_json(id="file-1")))

    assert [file.id for file in api.client().files.list()] == ["file-3", "file-2", "file-1"]

    assert "after" not in api.requests[0].url.params
    assert api.requests[1].url.params["after"] == "file-2"


def test_every_attempt_sends_the_whole_upload(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b'{"custom_id": "1"}\n')
    api = ScriptedApi(failure(503), ok(file_json()))

    api.client().files.upload(path)

    for request in api.requests:
        assert b'{"custom_id": "1"}' in request.content
        assert b'filename="prompts.jsonl"' in request.content
        assert b"batch" in request.content


def broken(request: httpx2.Request) -> httpx2.Response:
    """Responds with the four bytes `half`, and then the connection breaks."""
    return httpx2.Response(200, stream=_Breaking())


def test_an_interrupted_download_is_continued_by_the_next_call(tmp_path: Path) -> None:
    to = tmp_path / "out.jsonl"
    etag = f'"{hashlib.sha256(b"half and half").hexdigest()}"'
    # The client asks again for the last byte that it has, to detect a change of the file.
    rest = httpx2.Response(206, content=b"f and half", headers={"Content-Range": "bytes 3-12/13", "ETag": etag})
    api = ScriptedApi(broken, rest)

    with pytest.raises(APIConnectionError):
        api.client(max_retries=0).files.download("file-1", to)
    assert not to.exists()

    assert api.client().files.download("file-1", to).read_bytes() == b"half and half"
    assert api.requests[1].headers["range"] == "bytes=3-"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_a_download_with_wrong_content_leaves_no_file(tmp_path: Path) -> None:
    api = ScriptedApi(httpx2.Response(200, content=b"damaged", headers={"ETag": f'"{"0" * 64}"'}))

    with pytest.raises(APIResponseError, match="SHA-256"):
        api.client().files.download("file-1", tmp_path / "out.jsonl")

    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_without_data_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        ScriptedApi(failure(404)).client().files.download("file-1", tmp_path / "out.jsonl")

    assert list(tmp_path.iterdir()) == []


def test_a_partial_file_larger_than_the_original_is_downloaded_again(tmp_path: Path) -> None:
    (tmp_path / ".out.jsonl.file-1.part").write_bytes(b"far too much of it")
    api = ScriptedApi(failure(416, code="range_not_satisfiable"), httpx2.Response(200, content=b"whole"))

    assert api.client().files.download("file-1", tmp_path / "out.jsonl").read_bytes() == b"whole"


def test_a_broken_download_into_memory_continues_after_the_received_bytes() -> None:
    rest = httpx2.Response(206, content=b" and half", headers={"Content-Range": "bytes 4-12/13"})
    api = ScriptedApi(broken, rest)

    assert api.client().files.content("file-1") == b"half and half"
    assert api.requests[1].headers["range"] == "bytes=4-"


def test_a_broken_download_from_a_service_without_ranges_starts_again() -> None:
    api = ScriptedApi(broken, httpx2.Response(200, content=b"half and half"))

    assert api.client().files.content("file-1") == b"half and half"


def test_a_download_that_makes_no_progress_is_not_retried_forever() -> None:
    api = ScriptedApi(broken, broken, broken)

    with pytest.raises(APIConnectionError, match="gone"):
        api.client().files.content("file-1")


class _Breaking(httpx2.SyncByteStream):
    def __iter__(self):  # type: ignore[no-untyped-def]  # the base class leaves it untyped
        yield b"half"
        raise httpx2.ReadError("gone")


def test_the_exported_names_are_sorted_and_exist() -> None:
    assert slipstream.__all__ == sorted(slipstream.__all__)
    assert all(hasattr(slipstream, name) for name in slipstream.__all__)


@pytest.mark.parametrize("call", [lambda c: c.files.delete("file-1"), lambda c: c.deployments.delete("dep_1")])
def test_delete_sends_a_delete_request(call: Callable[[Client], None]) -> None:
    api = ScriptedApi(ok({"deleted": True}))

    call(api.client())

    assert api.requests[0].method == "DELETE"


@pytest.mark.parametrize("invalid_id", ["", ".", "..", "a\0b", "a\nb"])
def test_an_invalid_id_is_never_sent(invalid_id: str) -> None:
    api = ScriptedApi()

    with pytest.raises(ValueError, match="expected an id"):
        api.client().deployments.delete(invalid_id)

    assert api.requests == []


def test_special_characters_of_an_id_are_escaped_in_the_path() -> None:
    api = ScriptedApi(failure(404))

    with pytest.raises(NotFoundError):
        api.client().pipelines.retrieve("../files/x?y#z")

    assert api.requests[0].url.raw_path == b"/v1/pipelines/..%2Ffiles%2Fx%3Fy%23z"
