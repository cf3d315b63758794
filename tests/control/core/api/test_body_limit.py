import asyncio
import json
from collections.abc import Sequence
from typing import Any

from control.core.api.body_limit import BodyLimit
from control.core.settings.config import MIB, Config

CONFIG = Config(max_body_bytes=10, max_upload_bytes=100)


async def _reads_all(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads its body to the end and answers 200."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


def call(path: str, chunks: Sequence[bytes], *, announced: int | None = None) -> tuple[int, bytes, int]:
    """Returns the status, the body, and the number of chunks that were read from the socket."""
    waiting = list(chunks)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [] if announced is None else [(b"content-length", str(announced).encode())]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(BodyLimit(_reads_all, CONFIG)(scope, receive, send))
    return sent[0]["status"], sent[1]["body"], len(chunks) - len(waiting)


def test_a_body_within_its_limit_passes() -> None:
    assert call("/v1/batches", [b"x" * 10], announced=10)[0] == 200


def test_a_body_whose_announced_length_is_too_large_is_refused_unread() -> None:
    status, body, taken = call("/v1/batches", [b"x"] * 11, announced=11)

    assert (status, taken) == (413, 0)
    assert json.loads(body)["error"]["code"] == "request_too_large"


def test_a_body_of_unknown_length_is_cut_off_at_the_limit() -> None:
    status, _, taken = call("/v1/batches", [b"x" * 4] * 1000)

    assert (status, taken) == (413, 3)


def test_an_upload_has_its_own_limit() -> None:
    assert call("/v1/files", [b"x" * (100 + MIB)])[0] == 200
    assert call("/v1/files", [b"x" * (100 + MIB), b"x"])[0] == 413
