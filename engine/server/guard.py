"""Authentication and request ids.

    /health           open: it reveals nothing, and supervisors call it
    operator paths    the operator's token, else 401; 404 if the server has no such token, as for an unknown path
    all other paths   the clients' token, else 401; open if the server has no such token

Each token is valid only for its own paths.
"""

import hmac
import re
from collections.abc import Collection
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import Unauthorized
from engine.server.log import REQUEST

_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        operator_token: str | None,
        operator_paths: Collection[str],
    ) -> None:
        """`operator_paths`: these exist only if there is an operator's token."""
        self._app = app
        self._expected = _header(token)
        self._expected_of_operator = _header(operator_token)
        self._operator_paths = frozenset(operator_paths) if operator_token is not None else frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        asked = headers.get("x-request-id", "")
        request_id = asked if _REQUEST_ID.fullmatch(asked) else f"req_{uuid4().hex}"
        REQUEST.set(request_id)  # each request is a task with a separate context

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        path = scope["path"]
        expected = self._expected_of_operator if path in self._operator_paths else self._expected
        if path != "/health" and not _is(headers.get("authorization", ""), expected):
            whose = "operator's" if path in self._operator_paths else "server's"
            fault = Unauthorized(f"the Authorization header must be 'Bearer' and this {whose} token")
            await JSONResponse(fault.body(), status_code=fault.status)(scope, receive, send_named)
            return
        await self._app(scope, receive, send_named)


def _header(token: str | None) -> bytes | None:
    return None if token is None else f"Bearer {token}".encode()


def _is(given: str, expected: bytes | None) -> bool:
    """Compares in constant time."""
    return expected is None or hmac.compare_digest(given.encode("latin-1"), expected)
