"""The feed as server-sent events: each with its id, so that a reader who lost the connection goes on behind it.

retry: 2000

id: evt_…                  what the client sends back as Last-Event-ID
event: batch.completed
data: {"id": "evt_…", ...}

:                          every 15 s of silence, so that nobody on the way takes the connection for dead
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.db import connection

from control.core.api.errors import ApiError
from control.tenants.accounts.models import ApiKey, Organization
from control.tenants.accounts.selectors import is_valid
from control.tenants.events.models import Event
from control.tenants.events.schemas import EventObject
from control.tenants.events.selectors import events_list
from control.tenants.events.services import events_number
from control.tenants.row_security.scope import as_tenant

RETRY_MILLISECONDS = 2000
BATCH = 100
MAX_STREAMS = 10  # of one organization, in this process

_num_open: Counter[str] = Counter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    organization: Organization
    key: ApiKey
    after: int  # seq
    types: list[str] | None = None
    object_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    poll_seconds: float = 1.0
    heartbeat_seconds: float = 15.0
    max_seconds: float = 900.0  # then the client comes back by itself, perhaps to another process


def refuse_too_many(organization: Organization) -> None:
    """Raises: ApiError: 429."""
    if _num_open[organization.pk] >= MAX_STREAMS:
        message = f"There are {MAX_STREAMS} open streams of events already."
        raise ApiError(429, message, "too_many_streams", headers={"Retry-After": "5"})


async def stream(subscription: Subscription, pace: Pace | None = None) -> AsyncIterator[bytes]:
    """Ends after a while, or when its key does."""
    pace = pace or Pace()
    organization_id, seq = subscription.organization.pk, subscription.after
    began = heard = time.monotonic()
    _num_open[organization_id] += 1
    try:
        yield f"retry: {RETRY_MILLISECONDS}\n\n".encode()
        while time.monotonic() - began < pace.max_seconds:
            events = await sync_to_async(_look)(subscription, seq)
            if events is None:
                return
            for event in events:
                yield _message(event)
                assert event.seq is not None
                seq = event.seq
            now = time.monotonic()
            if events:
                heard = now
            elif now - heard >= pace.heartbeat_seconds:
                heard = now
                yield b":\n\n"
            if len(events) < BATCH:
                await asyncio.sleep(pace.poll_seconds)
    finally:
        _num_open[organization_id] -= 1


def _look(subscription: Subscription, seq: int) -> list[Event] | None:
    """What is new. None: the key does not open the feed any more."""
    try:
        with as_tenant(subscription.organization.pk):
            key = ApiKey.objects.select_related("project").filter(pk=subscription.key.pk).first()
            if key is None or not is_valid(key):
                return None
            events_number(subscription.organization)
            events = events_list(subscription.organization, types=subscription.types, object_id=subscription.object_id)
            return list(events.filter(seq__gt=seq).order_by("seq")[:BATCH])
    finally:
        if not connection.in_atomic_block:  # as it is in tests alone
            connection.close()  # a stream must not hold one through its silence


def _message(event: Event) -> bytes:
    data = json.dumps(EventObject.of(event).as_json(), separators=(",", ":"))
    return f"id: {event.id}\nevent: {event.type}\ndata: {data}\n\n".encode()
