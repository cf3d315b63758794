"""Who may do what, and the name of every request.

    /health               open: it tells nothing, and supervisors ask
    the operator's paths  the operator's token: 401 without it; 404 where the server has none, as for an unknown path
    all else              the clients' token: 401 without it; open where the server has none

Neither token opens what the other does.
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
        """`operator_paths`: routed only where there is an operator's token."""
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
        REQUEST.set(request_id)  # each request is a task, with a context of its own

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
    """In a time that does not tell how much of it was right."""
    return expected is None or hmac.compare_digest(given.encode("latin-1"), expected)
