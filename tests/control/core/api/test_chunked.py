"""Bodies of unknown length (`Transfer-Encoding: chunked`), as sent by clients that generate a body while sending it."""

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from control.asgi import application
from control.tenants.accounts.models import Organization
from tests.control.factories import make_key

pytestmark = pytest.mark.usefixtures("one_connection")

BOUNDARY = "b0undary"
FORM = "".join(
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
    # The name of the second field is closed by its own quote, so that a file name can follow.
    for name, value in (("purpose", "batch"), ('file"; filename="rows.jsonl', '{"a": 1}'))
)


def post(path: str, content_type: str, body: bytes, token: str) -> tuple[int, Any]:
    """Sends the body in chunks of ten bytes."""
    chunks = [body[start : start + 10] for start in range(0, len(body), 10)]
    sent: list[Any] = []

    async def receive() -> Any:
        if not chunks:
            await asyncio.Event().wait()  # the caller keeps the connection open until it has the response
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = {"authorization": f"Bearer {token}", "content-type": content_type, "transfer-encoding": "chunked"}
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "server": ("localhost", 80)}
    scope |= {"headers": [(name.encode(), value.encode()) for name, value in headers.items()]}
    async_to_sync(application)(scope, receive, send)
    return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


@pytest.mark.parametrize(
    ("path", "content_type", "body"),
    [
        ("/v1/projects", "application/json", b'{"name": "in many pieces"}'),
        ("/v1/files", f"multipart/form-data; boundary={BOUNDARY}", f"{FORM}--{BOUNDARY}--\r\n".encode()),
    ],
)
def test_a_chunked_body_is_accepted(organization: Organization, path: str, content_type: str, body: bytes) -> None:
    status, response = post(path, content_type, body, make_key(organization)[1])

    assert status in (200, 201), response
    # Each of the two responses has only one of these members.
    assert response.get("name", "in many pieces") == "in many pieces"
    assert response.get("bytes", 8) == 8
