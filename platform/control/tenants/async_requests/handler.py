"""Runs an async view for each request, without the thread that Django's own ASGI handler keeps until the last byte.

Differences from Django's handler:

- The body is not read before the view is called. The view calls `read_body` after it has authenticated the caller.
- Of the middleware in the settings, only `_MIDDLEWARE` and the parts in `_guarded` run; they need no thread.
- Django's signals of the beginning and end of a request are not sent; their receivers manage database connections.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from functools import lru_cache, reduce
from io import BytesIO
from typing import Any

import structlog
from django.core.exceptions import DisallowedHost, RequestAborted
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.security import SecurityMiddleware
from django.urls import ResolverMatch, resolve

from control.core.api.body_limit import Receive, Scope, Send, too_large
from control.core.api.errors import ApiError, error_response, server_error
from control.core.api.outage import outage
from control.core.api.request_id import RequestIdMiddleware
from control.core.observability.requests import RequestsMiddleware
from control.tenants.async_requests.event_stream import EventStream
from control.tenants.authentication.rate_limits import RateLimitMiddleware
from control.tenants.row_security.middleware import TenancyMiddleware

log = structlog.get_logger(__name__)

_MIDDLEWARE = (RequestIdMiddleware, RequestsMiddleware, TenancyMiddleware, RateLimitMiddleware)  # outermost first

BODY_SECONDS = 30.0  # the same as in the engine's server
LAST_EVENT_SECONDS = 1.0  # time at a shutdown to send the last event to a caller who reads slowly


class UnreadRequest(ASGIRequest):
    """A request whose body has not been read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, BytesIO())
        self.resolver_match = _match(self.path)
        self.receive = receive
        self.is_read = asyncio.Event()
        self.is_gone = False  # whether the caller has disconnected

    async def read_body(self, limit: int, add: Callable[[int], None]) -> bytes:
        """Returns the body. Calls `add` with the length of each part that arrives; `add` may raise to refuse the body.

        Raises: ApiError: 408, the body did not arrive within `BODY_SECONDS`; 413, it has more than `limit` bytes.
        RequestAborted: the caller has disconnected.
        """
        announced = self.headers.get("Content-Length", "0")
        if announced.isdigit() and int(announced) > limit:
            raise too_large(limit)
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._receive_body(limit, add)
        except TimeoutError as error:
            message = f"The request body did not arrive within {BODY_SECONDS:g} s."
            raise ApiError(408, message, "request_timeout") from error

    async def _receive_body(self, limit: int, add: Callable[[int], None]) -> bytes:
        parts, num_bytes, more = [], 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RequestAborted
            parts.append(message.get("body", b""))
            num_bytes += len(parts[-1])
            if num_bytes > limit:
                raise too_large(limit)
            add(len(parts[-1]))
            more = message.get("more_body", False)
        self.is_read.set()
        return b"".join(parts)


View = Callable[[UnreadRequest], Awaitable[HttpResponseBase]]
RenderError = Callable[[ApiError, str], HttpResponse]


class UnreadHandler:
    """The ASGI application for one view."""

    def __init__(self, view: View, render_error: RenderError = lambda error, path: error_response(error)) -> None:
        """Args: render_error: builds the response for an error; its second argument is the path of the request."""
        self._view = view
        self._render_error = render_error
        self._security, self._frames = SecurityMiddleware(_no_view), XFrameOptionsMiddleware(_no_view)
        self._serve = reduce(lambda inner, middleware: middleware(inner), reversed(_MIDDLEWARE), self._guarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = UnreadRequest(scope, receive)
        except UnicodeDecodeError:
            await _send(self._render_error(_bad_request(), scope["path"]), send)
            return
        async with _cancelled_on_disconnect(request):
            try:
                response = await self._serve(request)
            except asyncio.CancelledError:
                if not request.is_gone:
                    await _send(self._render_error(shut_down(), request.path), send)
                raise
            if not request.is_read.is_set():
                response.headers["Connection"] = "close"  # the rest of the body is not read
            if isinstance(response, EventStream):
                await _send_stream(request, response, send)
            else:
                await _send(response, send)

    async def _guarded(self, request: UnreadRequest) -> HttpResponseBase:
        """Redirects requests without TLS in production, turns exceptions into responses, and adds security headers."""
        response: HttpResponseBase
        try:
            redirect = self._security.process_request(request)
            request.get_host()
            response = redirect or await self._view(request)
        except ApiError as error:
            response = self._render_error(error, request.path)
        except DisallowedHost:
            response = self._render_error(_bad_request(), request.path)
        except RequestAborted:
            raise
        except Exception as error:
            found = outage(error)
            if found is None:
                log.exception("request failed")
            response = self._render_error(found or server_error(), request.path)
        for middleware in (self._security, self._frames):
            middleware.process_response(request, response)  # type: ignore[arg-type]  # only sets headers
        return response


@asynccontextmanager
async def _cancelled_on_disconnect(request: UnreadRequest) -> AsyncIterator[None]:
    """Cancels the block when the caller disconnects. The cancellation does not propagate beyond the block."""
    task = asyncio.current_task()
    assert task is not None

    async def watch() -> None:
        await request.is_read.wait()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        request.is_gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except RequestAborted:
        pass
    except asyncio.CancelledError:
        if not request.is_gone:
            raise
        task.uncancel()
    finally:
        watcher.cancel()


async def _send(response: HttpResponseBase, send: Send) -> None:
    assert isinstance(response, HttpResponse)
    await send(_start_of(response))
    await send({"type": "http.response.body", "body": response.content})


async def _send_stream(request: UnreadRequest, response: EventStream, send: Send) -> None:
    """Sends the events. When the server shuts down, it cancels this task, which then sends `at_shutdown` at the end."""
    try:
        async with aclosing(response.events):
            # The generator is started before anything else is awaited. If this task were cancelled before the start,
            # the generator's `finally` would not run, and the request would never end.
            part = await anext(response.events, b"")
            await send(_start_of(response))
            while part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await anext(response.events, b"")
            await send({"type": "http.response.body"})
    except asyncio.CancelledError:
        if not request.is_gone:
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_EVENT_SECONDS):
                    await send({"type": "http.response.body", "body": response.at_shutdown})
        raise


def _start_of(response: HttpResponseBase) -> dict[str, Any]:
    headers = [(name.lower().encode("ascii"), value.encode("latin1")) for name, value in response.items()]
    return {"type": "http.response.start", "status": response.status_code, "headers": headers}


def shut_down() -> ApiError:
    return ApiError(503, "The server is shutting down. Try again.", "server_draining", headers={"Retry-After": "1"})


def _bad_request() -> ApiError:
    return ApiError(400, "The request could not be understood.", "invalid_request")


def _no_view(request: HttpRequest) -> HttpResponse:
    raise AssertionError("only the methods for requests and responses of the middleware are called")


@lru_cache(maxsize=16)
def _match(path: str) -> ResolverMatch:
    """Returns the route in Django's URL table, by which metrics and logs name the request."""
    return resolve(path)
