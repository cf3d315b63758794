"""Runs an async view for each request, without the thread that Django's own ASGI handler keeps until the last byte.

Differences from Django's handler:

- The body is not read before the view is called. The view calls `read_body` after it has authenticated the caller.
- Of the middleware in the settings, only that in `_MIDDLEWARE` and in `_guarded` runs, which needs no thread.
- Django's signals of the beginning and end of a request are not sent; their receivers manage database connections.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from functools import lru_cache, reduce
from io import BytesIO

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
from control.core.api.outage import response_to_outage
from control.core.api.request_id import RequestIdMiddleware
from control.core.observability.requests import RequestsMiddleware
from control.serving.gateway.event_stream import EventStream
from control.tenants.authentication.rate_limits import RateLimitMiddleware
from control.tenants.row_security.middleware import TenancyMiddleware

log = structlog.get_logger(__name__)

_MIDDLEWARE = (RequestIdMiddleware, RequestsMiddleware, TenancyMiddleware, RateLimitMiddleware)  # outermost first


class UnreadRequest(ASGIRequest):
    """A request whose body has not been read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        super().__init__(scope, BytesIO())
        self.resolver_match = _match(self.path)
        self.receive = receive
        self.is_read = asyncio.Event()

    async def read_body(self, limit: int) -> bytes:
        """Raises: ApiError: 413, the body has more than `limit` bytes; RequestAborted: the caller has disconnected."""
        announced = self.headers.get("Content-Length", "0")
        if announced.isdigit() and int(announced) > limit:
            raise too_large(limit)
        parts, num_bytes, more = [], 0, True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise RequestAborted
            parts.append(message.get("body", b""))
            num_bytes += len(parts[-1])
            if num_bytes > limit:
                raise too_large(limit)
            more = message.get("more_body", False)
        self.is_read.set()
        return b"".join(parts)


View = Callable[[UnreadRequest], Awaitable[HttpResponseBase]]


class UnreadHandler:
    """The ASGI application for one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._security, self._frames = SecurityMiddleware(_no_view), XFrameOptionsMiddleware(_no_view)
        self._serve = reduce(lambda inner, middleware: middleware(inner), reversed(_MIDDLEWARE), self._guarded)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            request = UnreadRequest(scope, receive)
        except UnicodeDecodeError:
            await _send(_bad_request(), send)
            return
        async with _cancelled_on_disconnect(request):
            response = await self._serve(request)
            if not request.is_read.is_set():
                response.headers["Connection"] = "close"  # the rest of the body is not read
            await _send(response, send)

    async def _guarded(self, request: UnreadRequest) -> HttpResponseBase:
        """Redirects requests without TLS in production, turns exceptions into responses, and adds security headers."""
        response: HttpResponseBase
        try:
            redirect = self._security.process_request(request)
            request.get_host()
            response = redirect or await self._view(request)
        except ApiError as error:
            response = error_response(error)
        except DisallowedHost:
            response = _bad_request()
        except RequestAborted:
            raise
        except Exception as error:
            outage = response_to_outage(request, error)
            if outage is None:
                log.exception("request failed")
            response = outage or error_response(server_error())
        for middleware in (self._security, self._frames):
            middleware.process_response(request, response)  # type: ignore[arg-type]  # only sets headers
        return response


@asynccontextmanager
async def _cancelled_on_disconnect(request: UnreadRequest) -> AsyncIterator[None]:
    """Cancels the block when the caller disconnects; the block's exception for that ends here."""
    task, is_gone = asyncio.current_task(), False
    assert task is not None

    async def watch() -> None:
        nonlocal is_gone
        await request.is_read.wait()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        is_gone = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except RequestAborted:
        pass
    except asyncio.CancelledError:
        if not is_gone:
            raise
        task.uncancel()
    finally:
        watcher.cancel()


async def _send(response: HttpResponseBase, send: Send) -> None:
    headers = [(name.lower().encode("ascii"), value.encode("latin1")) for name, value in response.items()]
    start = {"type": "http.response.start", "status": response.status_code, "headers": headers}
    if not isinstance(response, EventStream):
        assert isinstance(response, HttpResponse)
        await send(start)
        await send({"type": "http.response.body", "body": response.content})
        return
    async with aclosing(response.events):
        # The generator is started before anything else is awaited. If this task were cancelled before the start, the
        # generator's `finally` would not run, and the request would never end.
        part = await anext(response.events, b"")
        await send(start)
        while part:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            part = await anext(response.events, b"")
        await send({"type": "http.response.body"})


def _bad_request() -> HttpResponse:
    return error_response(ApiError(400, "The request could not be understood.", "invalid_request"))


def _no_view(request: HttpRequest) -> HttpResponse:
    raise AssertionError("only the methods for requests and responses of the middleware are called")


@lru_cache(maxsize=16)
def _match(path: str) -> ResolverMatch:
    """The route in Django's URL table, by which metrics and logs name the request."""
    return resolve(path)
