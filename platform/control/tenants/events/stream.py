"""The feed as server-sent events. A client that lost the connection resumes after the last event that it received.

A stream consists of these messages:

retry: 2000                the client waits for this number of milliseconds before it reconnects

id: evt_…                  the client sends it back as Last-Event-ID
event: batch.completed
data: {"id": "evt_…", ...}

:                          after every 15 s without an event, so that no proxy closes the connection as idle
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog
from asgiref.sync import sync_to_async
from django.db import InterfaceError, OperationalError, connection

from control.core.api.errors import ApiError
from control.tenants.accounts.models import ApiKey
from control.tenants.accounts.selectors import is_valid
from control.tenants.events.models import Event
from control.tenants.events.schemas import EventObject
from control.tenants.events.selectors import events_list
from control.tenants.events.services import events_number
from control.tenants.events.subscription import Subscription
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)

Call = Callable[..., Awaitable[Any]]

RETRY_MILLISECONDS = 2000
MAX_EVENTS_PER_QUERY = 100
TOO_MANY_STREAMS = "too_many_streams"  # the code of an error
MAX_STREAMS = 10  # for each organization in each process

_num_open: Counter[str] = Counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    poll_seconds: float = 1.0
    heartbeat_seconds: float = 15.0
    max_seconds: float = 900.0  # duration of a stream; then the client reconnects, perhaps to another process


def refuse_too_many(organization_id: str) -> None:
    """Raises: ApiError: 429."""
    if _num_open[organization_id] >= MAX_STREAMS:
        message = f"Your organization has {MAX_STREAMS} open event streams already."
        raise ApiError(429, message, TOO_MANY_STREAMS, headers={"Retry-After": "5"})


async def stream(
    subscription: Subscription, pace: Pace | None = None, *, call: Call | None = None
) -> AsyncGenerator[bytes]:
    """Yields messages until `pace.max_seconds` have passed, the key is no longer valid or the database is unreachable.

    Args: call: calls a function with its arguments in a thread that may use the database. None: `sync_to_async`.
    """
    call = call or sync_to_async(_call_and_close)
    pace = pace or Pace()
    organization_id, seq = subscription.organization.pk, subscription.after
    started = last_sent = time.monotonic()
    _num_open[organization_id] += 1
    try:
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        while time.monotonic() - started < pace.max_seconds:
            events: list[Event] | None = await call(_new_events, subscription, seq)
            if events is None:
                return
            for event in events:
                yield _message(event)
                assert event.seq is not None
                seq = event.seq
            now = time.monotonic()
            if events:
                last_sent = now
            elif now - last_sent >= pace.heartbeat_seconds:
                last_sent = now
                yield b":\n\n"
            if len(events) < MAX_EVENTS_PER_QUERY:
                await asyncio.sleep(pace.poll_seconds)
    except (OperationalError, InterfaceError):  # the client reconnects
        log.warning("an event stream ended, because the database cannot be reached")
    finally:
        _num_open[organization_id] -= 1


def _new_events(subscription: Subscription, seq: int) -> list[Event] | None:
    """Returns at most `MAX_EVENTS_PER_QUERY` events after `seq`, or None if the key is no longer valid."""
    with as_tenant(subscription.organization.pk, subscription.key.project_id):
        key = ApiKey.objects.select_related("organization", "project").filter(pk=subscription.key.pk).first()
        if key is None or not is_valid(key):
            return None
        events_number(subscription.organization)
        events = events_list(subscription.organization, types=subscription.types, object_id=subscription.object_id)
        return list(events.filter(seq__gt=seq).order_by("seq")[:MAX_EVENTS_PER_QUERY])


def _call_and_close(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    finally:
        if not connection.in_atomic_block:  # only tests run this in a transaction
            connection.close()  # an idle stream must not keep a connection open


def _message(event: Event) -> bytes:
    data = json.dumps(EventObject.of(event).as_json(), separators=(",", ":"))
    return f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n".encode()
