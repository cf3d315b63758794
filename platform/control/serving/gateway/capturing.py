"""Keeps requests of deployments whose owners have opted in, after the requests have been counted.

Redacting and encrypting a request takes up to a fifth of a second. A separate task therefore does this work, so that
counting never waits, and organizations take turns. Requests that would exceed the limit of waiting bytes are not kept.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

import structlog
from django.db import DatabaseError

from control.core.api.json_body import parse_json
from control.core.database_threads import DatabaseThreads
from control.serving.captures.selectors import captures_since
from control.serving.captures.services import request_capture
from control.serving.gateway.ended import Ended
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)

MAX_WAITING_BYTES = 16 << 20  # limit for the waiting requests of one organization
MAX_ALL_WAITING_BYTES = 64 << 20  # limit for the waiting requests of all organizations
PER_TURN = 16  # requests of one organization that are stored before the next organization's turn
CLOSE_SECONDS = 5.0


class Captures:
    """The requests that wait to be kept, by organization. The first organization has the next turn."""

    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._waiting: dict[str, deque[Ended]] = {}
        self._num_bytes: dict[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, ended: Iterable[Ended]) -> None:
        """Adds requests that `to_capture` has returned."""
        num_dropped = sum(not self._append(one) for one in ended)
        if num_dropped:
            log.warning("too many requests wait to be captured", num_dropped=num_dropped)
        if self._waiting and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._keep_all())

    async def close(self) -> None:
        """Keeps as many of the waiting requests as possible within `CLOSE_SECONDS`."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=CLOSE_SECONDS)
            self._task.cancel()

    def _append(self, one: Ended) -> bool:
        organization_id, size = one.caller.organization_id, len(one.body or b"")
        num_bytes = self._num_bytes.get(organization_id, 0) + size
        if num_bytes > MAX_WAITING_BYTES or sum(self._num_bytes.values()) + size > MAX_ALL_WAITING_BYTES:
            return False
        self._num_bytes[organization_id] = num_bytes
        self._waiting.setdefault(organization_id, deque()).append(one)
        return True

    async def _keep_all(self) -> None:
        while self._waiting:
            organization_id = next(iter(self._waiting))
            waiting = self._waiting.pop(organization_id)
            some = [waiting.popleft() for _ in range(min(PER_TURN, len(waiting)))]
            self._num_bytes[organization_id] -= sum(len(one.body or b"") for one in some)
            if waiting:
                self._waiting[organization_id] = waiting  # behind the other organizations
            else:
                del self._num_bytes[organization_id]
            try:
                await self._threads.run(keep, organization_id, some)
            except Exception:  # the next requests must still be kept
                log.exception("requests not captured", organization_id=organization_id)


def to_capture(ended: Sequence[Ended]) -> list[Ended]:
    """Returns the requests that ended after the owner of the deployment had opted in."""
    found: list[Ended] = []
    answered = [one for one in ended if one.body is not None and one.tokens is not None]
    for organization_id in sorted({one.caller.organization_id for one in answered}):
        mine = [one for one in answered if one.caller.organization_id == organization_id]
        try:
            with as_tenant(organization_id, None):
                since = captures_since({one.named_id for one in mine})
        except DatabaseError as error:
            log.warning("could not keep requests", organization_id=organization_id, error=str(error))
            continue
        found += [one for one in mine if one.named_id in since and one.at >= since[one.named_id]]
    return found


def keep(organization_id: str, ended: Sequence[Ended]) -> None:
    """Stores requests of this organization that `to_capture` has returned."""
    try:
        with as_tenant(organization_id, None):
            for one in ended:
                request_capture(deployment_id=one.named_id, endpoint=one.endpoint, body=parse_json(one.body or b""))
    except DatabaseError as error:
        log.warning("could not keep requests", organization_id=organization_id, error=str(error))
