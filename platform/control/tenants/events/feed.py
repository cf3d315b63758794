"""The live feed as an ASGI application, which holds no thread and no connection to the database between two polls."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from control.core.api.body_limit import Receive, Scope, Send
from control.core.api.errors import ApiError, error_response
from control.core.api.operation import EVENTS
from control.core.database_threads import DatabaseThreads
from control.tenants.accounts.models import ApiKey
from control.tenants.async_requests.authentication import authenticate
from control.tenants.async_requests.event_stream import EventStream
from control.tenants.async_requests.handler import UnreadHandler, UnreadRequest
from control.tenants.events.services import events_number
from control.tenants.events.stream import TOO_MANY_STREAMS, Call, refuse_too_many, stream
from control.tenants.events.subscription import Subscription, subscription_of
from control.tenants.row_security.scope import as_tenant

PATH = "/v1/events"


def is_feed(scope: Mapping[str, Any]) -> bool:
    """Returns whether the request asks for a stream of events. `views.EventsView` serves the other requests."""
    accepted = (value for name, value in scope["headers"] if name == b"accept")
    return scope["path"] == PATH and scope["method"] == "GET" and any(EVENTS.encode() in value for value in accepted)


class RefusedKeys:
    """Keys that were refused because their organization has too many streams.

    The clients of an organization may ask again and again. A request with a key that was refused recently is refused
    without a query, so that it does not delay other callers of the database. A key is remembered for longer than its
    refusal's `Retry-After`, so that even a client that obeys the header is refused without a query.
    """

    def __init__(
        self, *, seconds: float = 60.0, max_keys: int = 1_000, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._max_keys, self._clock = seconds, max_keys, clock
        self._found: dict[bytes, tuple[str, float]] = {}  # by digest: the organization, and the time of the refusal

    def add(self, request: HttpRequest, organization_id: str) -> None:
        digest = _digest(request)
        self._found.pop(digest, None)  # so that the dictionary is ordered by time
        self._found[digest] = organization_id, self._clock()
        if len(self._found) > self._max_keys:
            del self._found[next(iter(self._found))]

    def organization_of(self, request: HttpRequest) -> str | None:
        """Returns the organization of the request's key if this key was refused recently."""
        organization_id, refused_at = self._found.get(_digest(request), (None, 0.0))
        return organization_id if self._clock() - refused_at < self._seconds else None


def _digest(request: HttpRequest) -> bytes:
    """Returns a digest of the headers from which `authenticate` reads the key."""
    credentials = [request.headers.get(name, "") for name in ("Authorization", "x-api-key")]
    return hashlib.sha256(repr(credentials).encode()).digest()


class Feed:
    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._handler = UnreadHandler(self._view)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by organization or key's digest
        self._refused = RefusedKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)

    async def _view(self, request: UnreadRequest) -> HttpResponseBase:
        try:
            # When many requests with one key arrive at once, those after the first refusal need no database.
            async with self._turns.setdefault(_digest(request).hex(), asyncio.Lock()):
                return await self._stream(request)
        except ApiError as error:
            return error_response(error)

    async def _stream(self, request: UnreadRequest) -> EventStream:
        """Raises: ApiError."""
        if refused := self._refused.organization_of(request):
            refuse_too_many(refused)
        key = await authenticate(request, "events", self._threads.run)
        await request.read_body(0, lambda _: None)
        call = self._one_at_a_time(key.organization_id)
        try:
            refuse_too_many(key.organization_id)
            subscription: Subscription = await call(_subscribe, request, key)
            # Checked again, because other streams may have started during the calls above. Nothing is awaited between
            # this check and the start of the stream.
            refuse_too_many(key.organization_id)
        except ApiError as error:
            if error.code == TOO_MANY_STREAMS:
                self._refused.add(request, key.organization_id)
            raise
        return EventStream(stream(subscription, call=call))

    def _one_at_a_time(self, organization_id: str) -> Call:
        """Lets each organization have one poll at a time, because a poll may wait for its organization's lock in the
        database.

        Otherwise the feeds of one organization could occupy all database threads, which the gateway uses too.
        """
        turn = self._turns.setdefault(organization_id, asyncio.Lock())

        async def call(function: Callable[..., Any], *args: Any) -> Any:
            await turn.acquire()
            polling = asyncio.create_task(self._threads.run(function, *args))
            polling.add_done_callback(lambda _: turn.release())  # even if the client disconnects during the poll
            return await asyncio.shield(polling)

        return call


def _subscribe(request: UnreadRequest, key: ApiKey) -> Subscription:
    with as_tenant(key.organization_id, key.project_id):
        events_number(key.organization)
        return subscription_of(request, key)
