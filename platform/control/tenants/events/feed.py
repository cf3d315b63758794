"""The live feed as an ASGI application, which holds no thread and no connection to the database between two polls."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakValueDictionary

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
from control.tenants.events.stream import Call, refuse_too_many, stream
from control.tenants.events.subscription import Subscription, subscription_of
from control.tenants.row_security.scope import as_tenant

PATH = "/v1/events"


def is_feed(scope: Mapping[str, Any]) -> bool:
    """Whether the request is one for a stream. `views.EventsView` serves the others."""
    accepted = (value for name, value in scope["headers"] if name == b"accept")
    return scope["path"] == PATH and scope["method"] == "GET" and any(EVENTS.encode() in value for value in accepted)


class Feed:
    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._handler = UnreadHandler(self._view)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by organization

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)

    async def _view(self, request: UnreadRequest) -> HttpResponseBase:
        try:
            key = await authenticate(request, "events", self._threads.run)
            await request.read_body(0, lambda _: None)
            refuse_too_many(key.organization)
            call = self._one_at_a_time(key.organization_id)
            subscription: Subscription = await call(_subscribe, request, key)
            refuse_too_many(
                key.organization
            )  # again: nothing is awaited between this check and the start of the stream
            return EventStream(stream(subscription, call=call))
        except ApiError as error:
            return error_response(error)

    def _one_at_a_time(self, organization_id: str) -> Call:
        """A poll may wait for its organization's lock in the database, so an organization has one poll at a time.

        Otherwise ten feeds of one organization could occupy all threads, which the gateway uses too.
        """
        turn = self._turns.setdefault(organization_id, asyncio.Lock())

        async def call(function: Callable[..., Any], *args: Any) -> Any:
            await turn.acquire()
            polling = asyncio.create_task(self._threads.run(function, *args))
            polling.add_done_callback(lambda _: turn.release())  # also if the client disconnects before
            return await asyncio.shield(polling)

        return call


def _subscribe(request: UnreadRequest, key: ApiKey) -> Subscription:
    with as_tenant(key.organization_id, key.project_id):
        events_number(key.organization)
        return subscription_of(request, key)
