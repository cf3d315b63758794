"""Records requests that have ended: writes their usage, releases their reservations and counts failures.

All requests that ended within `WRITE_SECONDS` are recorded together, in one transaction for each organization. If the
database is unreachable, their usage is kept and written later. At shutdown, all remaining usage is written.

A gateway that is killed (`kill -9`) loses the usage of requests that ended in its last `WRITE_SECONDS` or during an
unfinished write. It also loses the usage of streams that had not ended. The reservations of these requests expire.
"""

import asyncio
import datetime as dt
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from uuid import uuid4

import structlog
from django.db import InterfaceError, OperationalError, transaction
from django.db.models import F

from control.billing.spending.reservations import RENEW_SECONDS, reservations_release, reservations_renew
from control.billing.usage.services import Tokens, Used, minute_of, usage_add_all
from control.core.database_threads import DatabaseThreads
from control.serving.deployments.models import Deployment
from control.serving.gateway.capturing import Captures, to_capture
from control.serving.gateway.ended import Ended
from control.serving.rollouts.evidence import evidence_add
from control.tenants.authentication.caller import Caller
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)

WRITE_SECONDS = 0.25
CLOSE_SECONDS = 5.0  # how long the last write may be tried again at shutdown


class Accounts:
    """Collects ended requests and writes them from a task of the event loop."""

    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._ended: list[Ended] = []
        self._reservations: dict[str, str] = {}  # maps the reservations of open requests to organizations
        self._renewed_at = time.monotonic()
        self._is_closing = asyncio.Event()
        self._captures = Captures(threads)
        self._task = asyncio.create_task(self._write_until_closed())

    def begin(self, caller: Caller, reservation_id: str) -> None:
        self._reservations[reservation_id] = caller.organization_id

    def end(self, ended: Ended) -> None:
        """Adds a request that has ended. Never waits, so that a cancelled request can call it."""
        if ended.reservation_id is not None:
            self._reservations.pop(ended.reservation_id, None)
        self._ended.append(ended)

    async def close(self) -> None:
        """Writes everything. Call it when no request is in progress."""
        self._is_closing.set()
        await self._task
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._ended and time.monotonic() < deadline:
            await self._write()
            if self._ended:
                await asyncio.sleep(WRITE_SECONDS)
        await self._captures.close()
        for ended in self._ended:
            log.error("usage not counted", organization_id=ended.caller.organization_id, tokens=ended.tokens)

    async def _write_until_closed(self) -> None:
        while not self._is_closing.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_closing.wait(), WRITE_SECONDS)
            try:
                await self._write()
                await self._renew()
            except Exception:
                log.exception("requests not recorded")

    async def _write(self) -> None:
        if self._ended:
            ended, self._ended = self._ended, []
            remaining = await self._threads.run(write, ended)
            self._ended += remaining
            recorded = [one for one in ended if not any(one is other for other in remaining)]
            self._captures.add(await self._threads.run(to_capture, recorded))
            await self._threads.run(observe, recorded)

    async def _renew(self) -> None:
        if self._reservations and time.monotonic() - self._renewed_at >= RENEW_SECONDS:
            self._renewed_at = time.monotonic()
            await self._threads.run(_renew, dict(self._reservations))


def write(ended: Iterable[Ended]) -> list[Ended]:
    """Records the requests. Returns those that could not be recorded because the database is unreachable.

    Nothing of the returned requests was written.
    """
    remaining: list[Ended] = []
    in_order = sorted(ended, key=lambda one: one.caller.organization_id)
    for organization_id, group in groupby(in_order, key=lambda one: one.caller.organization_id):
        requests = list(group)
        if not _write_group(organization_id, requests):
            remaining += requests
    return remaining


def observe(ended: Iterable[Ended]) -> None:
    """Adds what was measured of the requests to the evidence of rollouts."""
    evidence_add([one.observation for one in ended if one.observation is not None])


def _write_group(organization_id: str, ended: Sequence[Ended]) -> bool:
    """Records the requests of one organization. Returns False if nothing was written and the caller must try again."""
    is_committing = False
    try:
        with as_tenant(organization_id, None), transaction.atomic():
            _record(ended)
            is_committing = True
    except (OperationalError, InterfaceError):
        if not is_committing:
            log.exception("the database cannot be reached; usage will be written later", num_requests=len(ended))
            return False
        # The database may have committed. A second attempt could charge the customer twice.
        log.exception("usage was perhaps not counted", organization_id=organization_id, used=str(_summed(ended)))
    except Exception:  # for example, the organization was deleted; other organizations' usage must still be written
        log.exception("usage not counted", organization_id=organization_id, used=str(_summed(ended)))
    return True


def _record(ended: Sequence[Ended]) -> None:
    usage_add_all(_summed(ended))
    if reservations := [one.reservation_id for one in ended if one.reservation_id is not None]:
        reservations_release(reservations)
    failures = Counter(one.failed_id for one in ended if one.failed_id is not None)
    for deployment_id, count in sorted(failures.items()):
        Deployment.objects.filter(pk=deployment_id).update(num_failed=F("num_failed") + count)


def _summed(ended: Sequence[Ended]) -> list[Used]:
    """Sums the usage into one record for each API key, deployment and minute."""
    sums: dict[tuple[Caller, str, str, dt.datetime], Used] = {}
    for one in ended:
        if one.tokens is None:
            continue
        key = (one.caller, one.model, one.named_id, minute_of(one.at))
        before = sums.get(key)
        tokens, num_requests = (before.tokens, before.num_requests) if before else (Tokens(), 0)
        tokens = Tokens(
            input=tokens.input + one.tokens.input,
            cached=tokens.cached + one.tokens.cached,
            output=tokens.output + one.tokens.output,
        )
        sums[key] = Used(
            caller=one.caller,
            model=one.model,
            base_model_id=one.base_model_id,
            object_id=one.named_id,
            sequence=before.sequence if before else uuid4().hex,
            at=one.at,
            tokens=tokens,
            num_requests=num_requests + 1,
            is_batch=False,
        )
    return list(sums.values())


def _renew(reservations: dict[str, str]) -> None:
    for organization_id in set(reservations.values()):
        mine = [reservation for reservation, owner in reservations.items() if owner == organization_id]
        with as_tenant(organization_id, None):
            reservations_renew(mine)
