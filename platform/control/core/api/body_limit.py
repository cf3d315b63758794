"""Refuses a request before Django reads its body if the body is too large, or large and sent without a valid API key.

Django writes a body to disk before it looks at the API key. This middleware therefore passes on only the first
`UNKNOWN_CALLER_BYTES` of a body until the caller is authenticated.
"""

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
Authenticate = Callable[[Scope], Awaitable[None]]  # raises ApiError

UNKNOWN_CALLER_BYTES = 64 * 1024
_UPLOAD_PATHS = frozenset({"/v1/files", "/admin/files/file/add/"})
_PART_PATH = re.compile(r"/v1/uploads/[^/]+/parts")
_MULTIPART_OVERHEAD_BYTES = MIB


class BodyLimit:
    """ASGI middleware. It checks the Content-Length header, and also counts bytes, because chunked requests lack it.

    Args: authenticate: checks the API key in a request's headers.
    """

    def __init__(self, application: Application, config: Config, authenticate: Authenticate) -> None:
        self.application = application
        self.config = config
        self.authenticate = authenticate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.application(scope, receive, send)
            return
        limit = self._limit(scope["path"])
        received, is_known = 0, False

        async def refusal(num_bytes: int) -> ApiError | None:
            nonlocal is_known
            if num_bytes > limit:
                return too_large(limit)
            if num_bytes > UNKNOWN_CALLER_BYTES and not is_known:
                try:
                    await self.authenticate(scope)
                except ApiError as error:
                    return error
                is_known = True
            return None

        announced = dict(scope["headers"]).get(b"content-length", b"0")
        refused = await refusal(int(announced) if announced.isdigit() else 0)
        if refused is not None:
            await _refuse(send, refused)
            return

        async def receive_and_count() -> Message:
            nonlocal received, refused
            message = await receive()
            received += len(message.get("body", b""))
            refused = refused or await refusal(received)
            # after a disconnect, Django stops reading and removes its temporary file
            return message if refused is None else {"type": "http.disconnect"}

        await self.application(scope, receive_and_count, send)
        if refused is not None:
            await _refuse(send, refused)

    def _limit(self, path: str) -> int:
        if path in _UPLOAD_PATHS or _PART_PATH.fullmatch(path):
            return self.config.max_upload_bytes + _MULTIPART_OVERHEAD_BYTES
        return self.config.max_body_bytes


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"The request body must be at most {limit:,} bytes.", "request_too_large")


async def _refuse(send: Send, error: ApiError) -> None:
    headers = {
        "content-type": "application/json",
        "connection": "close",  # the rest of the body is not read
        "x-request-id": f"req_{secrets.token_hex(16)}",
        **error.headers,
    }
    encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": encoded})
    await send({"type": "http.response.body", "body": json.dumps(error.body()).encode()})
