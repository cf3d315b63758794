"""The gateway as an ASGI application.

Its state consists of cached routes, the count of open requests, and records that are not yet written. The state belongs
to one event loop. The first request creates the state, and so does the first request after `close`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from control.core.api.body_limit import Receive, Scope, Send
from control.core.api.errors import ApiError
from control.core.database_threads import DatabaseThreads
from control.core.settings.config import get_config
from control.serving.gateway.accounting import Accounts
from control.serving.gateway.completion_request import CompletionRequest
from control.serving.gateway.ended import Ended
from control.serving.gateway.large_bodies import BodyReader
from control.serving.gateway.open_requests import OpenRequests
from control.serving.gateway.routes import Routes
from control.serving.gateway.serving import Entrance, error_response, serve
from control.serving.gateway.shadowing import Shadows
from control.serving.gateway.wire import WIRES
from control.tenants.async_requests.handler import UnreadHandler, UnreadRequest
from control.tenants.authentication.caller import Caller

CLOSE_SECONDS = 5.0  # how long `close` waits for requests that the server has cancelled


_NO_ENTRANCES: Mapping[str, Entrance] = {}


class Gateway:
    def __init__(self, threads: DatabaseThreads, entrances: Mapping[str, Entrance] = _NO_ENTRANCES) -> None:
        """Args: entrances: by the path of a request; in addition to the routes of the API."""
        self._threads = threads
        self._entrances = {path: Entrance(path=path) for path in WIRES} | dict(entrances)
        self._handler = UnreadHandler(self._view, self._render_error)
        self._state: _State | None = None
        self._requests: set[asyncio.Task[Any]] = set()

    def serves(self, path: str) -> bool:
        return path in self._entrances

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            await self._handler(scope, receive, send)
        finally:
            self._requests.discard(task)

    async def close(self) -> None:
        """Writes all records. The server calls this after it has ended or cancelled all requests."""
        if self._requests:
            await asyncio.wait(self._requests, timeout=CLOSE_SECONDS)
        if self._state is not None:
            await self._state.shadows.close()
            await self._state.accounts.close()
            await self._state.bodies.close()
        self._state = None

    async def _view(self, request: UnreadRequest) -> HttpResponseBase:
        if self._state is None:
            self._state = _State(self._threads)
        return await serve(request, _Backend(self._state, request), self._entrances[request.path])

    def _render_error(self, error: ApiError, path: str) -> HttpResponse:
        return error_response(error, self._entrances[path].path)


class _State:
    def __init__(self, threads: DatabaseThreads) -> None:
        self.threads = threads
        self.routes = Routes(threads.run)
        self.open_requests = OpenRequests()
        self.accounts = Accounts(threads)
        self.bodies = BodyReader()
        self.shadows = Shadows(threads)


class _Backend:
    """A `serving.Backend` for one request."""

    def __init__(self, state: _State, request: UnreadRequest) -> None:
        self._state, self._request = state, request
        self.routes, self.open_requests, self.shadows = state.routes, state.open_requests, state.shadows

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self._state.threads.run(function, *args, **kwargs)

    async def receive_body(self, add: Callable[[int], None]) -> bytes:
        return await self._request.read_body(get_config().max_body_bytes, add)

    async def read_body(self, raw: bytes, path: str, *, organization_id: str) -> tuple[CompletionRequest, bytes]:
        return await self._state.bodies.read(raw, path, organization_id=organization_id)

    def begin(self, caller: Caller, reservation_id: str) -> None:
        self._state.accounts.begin(caller, reservation_id)

    async def end(self, ended: Ended) -> None:
        self._state.accounts.end(ended)
