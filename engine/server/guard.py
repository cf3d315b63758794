"""Checks the tokens of requests and assigns request ids.

    path              required token, without which the status is 401
    /health           none, because it reveals nothing and supervisors call it
    operator paths    the operator's token; if the server has no such token, these paths do not exist
    all other paths   the clients' token; if the server has no such token, none

The clients' token is not valid for operator paths, nor the operator's token for other paths.
"""

import hmac
import re
from collections.abc import Collection
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from engine.server.errors import Unauthorized, error_response
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
        """`operator_paths`: paths that need the operator's token, if there is one."""
        self._app = app
        self._expected = _header(token)
        self._expected_of_operator = _header(operator_token)
        self._operator_paths = frozenset(operator_paths) if operator_token is not None else frozenset()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        requested_id = headers.get("x-request-id", "")
        request_id = requested_id if _REQUEST_ID.fullmatch(requested_id) else f"req_{uuid4().hex}"
        REQUEST.set(request_id)  # each request is a task with a separate context

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        path = scope["path"]
        expected = self._expected_of_operator if path in self._operator_paths else self._expected
        if path != "/health" and not _equals(_given(headers), expected):
            whose = "operator's" if path in self._operator_paths else "server's"
            fault = Unauthorized(f"the Authorization header must be 'Bearer' and this {whose} token")
            await error_response(path, fault.body(), status=fault.status)(scope, receive, send_with_id)
            return
        await self._app(scope, receive, send_with_id)


def _header(token: str | None) -> bytes | None:
    return None if token is None else f"Bearer {token}".encode()


def _given(headers: Headers) -> str:
    """Returns the given authorization. Anthropic's clients send the token as `x-api-key`."""
    if "authorization" not in headers and "x-api-key" in headers:
        return f"Bearer {headers['x-api-key']}"
    return headers.get("authorization", "")


def _equals(given: str, expected: bytes | None) -> bool:
    """Compares in constant time."""
    return expected is None or hmac.compare_digest(given.encode("latin-1"), expected)
