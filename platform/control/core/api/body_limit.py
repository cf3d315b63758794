"""Refuses a request body that is too large before Django reads it: Django would first write all of it to disk."""

import json
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from control.core.api.errors import ApiError
from control.core.settings.config import MIB, Config

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]

_UPLOAD_PATHS = frozenset({"/v1/files", "/admin/files/file/add/"})
_PART_PATH = re.compile(r"/v1/uploads/[^/]+/parts")
_MULTIPART_OVERHEAD_BYTES = MIB


class _TooLarge(Exception):
    """The body exceeded its limit while Django was still reading it, so no response has been started."""


class BodyLimit:
    """ASGI middleware. It also counts the bytes that arrive, because a chunked body has no Content-Length header."""

    def __init__(self, application: Application, config: Config) -> None:
        self.application = application
        self.config = config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > limit:
            await _refuse(send, limit)
            return
        received = 0

        async def receive_and_count() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise _TooLarge
            return message

        try:
            await self.application(scope, receive_and_count, send)
        except _TooLarge:
            await _refuse(send, limit)

    def _limit(self, path: str) -> int:
        if path in _UPLOAD_PATHS or _PART_PATH.fullmatch(path):
            return self.config.max_upload_bytes + _MULTIPART_OVERHEAD_BYTES
        return self.config.max_body_bytes


async def _refuse(send: Send, limit: int) -> None:
    error = ApiError(413, f"The request body must be at most {limit:,} bytes.", "request_too_large")
    headers = [
        (b"content-type", b"application/json"),
        (b"connection", b"close"),  # the rest of the body is not read
        (b"x-request-id", f"req_{secrets.token_hex(16)}".encode()),
    ]
    await send({"type": "http.response.start", "status": 413, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(error.body()).encode()})
