"""A request body over the limit is refused. If the length is known from a header, no byte of the body is read."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from control.core.api.body_limit import UNKNOWN_CALLER_BYTES, Authenticate, BodyLimit
from control.core.api.errors import ApiError
from control.core.settings.config import MIB, Config

CONFIG = Config(max_body_bytes=10, max_upload_bytes=100)


async def _read_all(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads its body to the end and answers 200, or stops when the caller disconnects."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def _accept(scope: Any) -> None:
    """Accepts every caller."""


async def _reject(scope: Any) -> None:
    raise ApiError(401, "Who are you?", "missing_api_key", headers={"WWW-Authenticate": "Bearer"})


def call(
    path: str, chunks: Sequence[bytes], *, content_length: int | None = None, authenticate: Authenticate = _accept
) -> tuple[int, bytes, int]:
    """Returns the status, the body, and the number of chunks that were read from the socket."""
    unread = list(chunks)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": unread.pop(0), "more_body": bool(unread)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if content_length is None else [(b"content-length", str(content_length).encode())]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(BodyLimit(_read_all, CONFIG, authenticate)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], len(chunks) - len(unread)


def test_a_body_within_its_limit_passes() -> None:
    assert call("/v1/batches", [b"x" * 10], content_length=10)[0] == 200


def test_a_body_whose_content_length_is_too_large_is_refused_without_reading_it() -> None:
    status, body, num_read = call("/v1/batches", [b"x"] * 11, content_length=11)

    assert (status, num_read) == (413, 0)
    assert json.loads(body)["error"]["code"] == "request_too_large"


def test_a_body_of_unknown_length_is_refused_as_soon_as_it_exceeds_the_limit() -> None:
    status, _, num_read = call("/v1/batches", [b"x" * 4] * 1000)

    assert (status, num_read) == (413, 3)  # the third chunk of 4 bytes exceeds the limit of 10


def test_a_file_upload_has_its_own_limit() -> None:
    # The form that contains the file may take another MiB.
    assert call("/v1/files", [b"x" * (100 + MIB)])[0] == 200
    assert call("/v1/files", [b"x" * (100 + MIB), b"x"])[0] == 413


def test_a_large_body_of_an_unknown_caller_is_refused_without_reading_it() -> None:
    size = UNKNOWN_CALLER_BYTES + 1
    status, body, num_read = call("/v1/files", [b"x" * size], content_length=size, authenticate=_reject)

    assert (status, num_read) == (401, 0)
    assert json.loads(body)["error"]["code"] == "missing_api_key"


def test_a_body_of_unknown_length_is_read_only_up_to_the_limit_for_unknown_callers() -> None:
    status, _, num_read = call("/v1/files", [b"x" * 1024] * 1000, authenticate=_reject)

    assert (status, num_read) == (401, UNKNOWN_CALLER_BYTES // 1024 + 1)


def test_a_small_body_of_an_unknown_caller_is_passed_to_the_view() -> None:
    assert call("/v1/files", [b"x" * UNKNOWN_CALLER_BYTES], authenticate=_reject)[0] == 200
