"""Sends copies of requests to the candidate of a rollout in mode `shadow`, and compares its answers.

A copy is sent after the caller has got the whole answer, so it can neither delay nor change the caller's request. It is
not recorded as usage. Each rollout has a queue of copies, whose number and bytes are limited. While the queue is full,
further copies are dropped and counted. When the rollout's trial ends, its copies are discarded, including those being
sent.
"""

import asyncio
import random
from collections import Counter, deque
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from time import monotonic

import structlog

from control.billing.usage.services import Tokens
from control.core.api.errors import ApiError
from control.core.database_threads import DatabaseThreads
from control.serving.gateway.comparing import NotComparable, are_equal, repeated_request, tokens_in
from control.serving.gateway.observing import Measured
from control.serving.gateway.routes import Trial
from control.serving.gateway.upstream import NotAccepted, forward
from control.serving.rollouts.evidence import Comparison, Observation, Side, evidence_add
from control.serving.rollouts.selectors import rollout_is_in_trial
from control.tenants.row_security.scope import as_tenant

log = structlog.get_logger(__name__)

MAX_WAITING = 64  # waiting copies of one rollout
MAX_WAITING_BYTES = 16 << 20  # limit for the waiting copies of one rollout
MAX_ALL_WAITING_BYTES = 64 << 20  # limit for the waiting copies of all rollouts
MAX_BODY_BYTES = 256 << 10  # requests with larger bodies are not copied
MAX_RUNNING = 4  # copies of one rollout that are sent at the same time
CHECK_SECONDS = 1.0  # how often a rollout is read while its copies wait or run
COPY_SECONDS = 600.0  # the longest time for one copy
CLOSE_SECONDS = 5.0  # the longest time that `close` waits until the last counts are written


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    organization_id: str
    trial: Trial
    request_id: str
    path: str
    body: bytes  # as it was sent to the engine
    answer: bytes  # what the engine answered, before the gateway removed usage from it
    memory: str | None

    @property
    def num_bytes(self) -> int:
        return len(self.body) + len(self.answer)

    def observation(self, compared: Comparison | None) -> Observation:
        return Observation(
            organization_id=self.organization_id,
            rollout_id=self.trial.rollout_id,
            side=Side.CANDIDATE,
            compared=compared,
            request_id=self.request_id,
        )


@dataclass(slots=True)
class _Lane:
    """The queue of one rollout's copies. A candidate that hangs delays only its own queue."""

    waiting: deque[Copy] = field(default_factory=deque)
    num_bytes: int = 0  # of the waiting copies
    tasks: set[asyncio.Task[None]] = field(default_factory=set)  # each sends one copy at a time
    checked_at: float | None = None  # time of the last check whether the trial goes on
    is_in_trial: bool = True


class Shadows:
    """The waiting copies, and the tasks that send them. It belongs to one event loop."""

    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._lanes: dict[str, _Lane] = {}  # by rollout
        self._uncounted: Counter[Observation] = Counter()  # observations that are not written yet
        self._counting: asyncio.Task[None] | None = None
        self._is_closed = False

    def offer(self, copy: Copy) -> None:
        """Adds a copy, or counts it as dropped. Never waits."""
        lane = self._lanes.setdefault(copy.trial.rollout_id, _Lane())
        num_bytes, num_all = lane.num_bytes, sum(each.num_bytes for each in self._lanes.values())
        is_full = len(lane.waiting) >= MAX_WAITING or num_bytes + copy.num_bytes > MAX_WAITING_BYTES
        if is_full or num_all + copy.num_bytes > MAX_ALL_WAITING_BYTES:
            self.note(replace(copy.observation("dropped"), request_id=""))
        else:
            lane.waiting.append(copy)
            lane.num_bytes += copy.num_bytes
        self._start_or_forget(copy.trial.rollout_id, lane)

    def note(self, observation: Observation) -> None:
        """Counts an observation, for example that a copy was dropped. Sends no copy, and never waits."""
        self._uncounted[observation] += 1
        if self._counting is None or self._counting.done():
            self._counting = asyncio.create_task(self._count_all())

    async def close(self) -> None:
        """Ends the running copies and discards the waiting ones."""
        self._is_closed = True
        tasks = [task for lane in self._lanes.values() for task in lane.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._counting is not None:
            await asyncio.wait([self._counting], timeout=CLOSE_SECONDS)

    def _start_or_forget(self, rollout_id: str, lane: _Lane) -> None:
        if lane.waiting and len(lane.tasks) < MAX_RUNNING and not self._is_closed:
            task = asyncio.create_task(self._send_all(lane))
            lane.tasks.add(task)
            task.add_done_callback(partial(self._end, rollout_id, lane))
        elif not lane.tasks:
            self._lanes.pop(rollout_id, None)

    def _end(self, rollout_id: str, lane: _Lane, task: asyncio.Task[None]) -> None:
        lane.tasks.discard(task)
        self._start_or_forget(rollout_id, lane)  # a copy may have been added after the task found no more

    async def _send_all(self, lane: _Lane) -> None:
        while lane.waiting:
            copy = lane.waiting.popleft()
            lane.num_bytes -= copy.num_bytes
            try:
                await self._send_during_trial(lane, copy)
            except Exception:  # the next copies must still be sent
                log.exception("a copy of a request was not compared", rollout_id=copy.trial.rollout_id)

    async def _count_all(self) -> None:
        while self._uncounted:
            noted, self._uncounted = self._uncounted, Counter()
            try:
                await self._threads.run(evidence_add, list(noted.elements()))
            except Exception:
                log.exception("copies not counted", num_copies=noted.total())

    async def _send_during_trial(self, lane: _Lane, copy: Copy) -> None:
        """Sends the copy and counts the comparison. Does not send it, or stops, once the rollout's trial has ended."""
        if not await self._is_in_trial(lane, copy):
            return
        sending, begun = asyncio.ensure_future(_answered(copy)), monotonic()
        try:
            while not sending.done() and await self._is_in_trial(lane, copy) and monotonic() - begun < COPY_SECONDS:
                await asyncio.wait([sending], timeout=CHECK_SECONDS)
            observation = sending.result() if sending.done() else copy.observation("not_comparable")
            await self._threads.run(evidence_add, [observation])
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _is_in_trial(self, lane: _Lane, copy: Copy) -> bool:
        if lane.checked_at is None or monotonic() - lane.checked_at >= CHECK_SECONDS:
            lane.is_in_trial = await self._threads.run(_read_is_in_trial, copy.organization_id, copy.trial.rollout_id)
            lane.checked_at = monotonic()
        return lane.is_in_trial


def _read_is_in_trial(organization_id: str, rollout_id: str) -> bool:
    with as_tenant(organization_id, None):
        return rollout_is_in_trial(organization_id, rollout_id)


async def _answered(copy: Copy) -> Observation:
    """Sends the copy. Returns what was measured and compared."""
    try:
        body = await asyncio.to_thread(repeated_request, copy.body, copy.answer)
    except NotComparable:
        return copy.observation("not_comparable")
    measured = Measured(
        organization_id=copy.organization_id,
        rollout_id=copy.trial.rollout_id,
        side=Side.CANDIDATE,
        request_id=copy.request_id,
        path=copy.path,
        keeps_answer=True,
    )
    try:
        await _receive(copy, body, measured)
    except NotAccepted:  # the candidate accepts no more requests, or is about to stop
        return copy.observation("dropped")
    except ApiError:
        return replace(measured.failed(), compared="not_comparable")
    answer = None if measured.kept is None else b"".join(measured.kept)
    tokens = Tokens() if answer is None else await asyncio.to_thread(tokens_in, answer)
    observation = measured.ended(tokens) or copy.observation(None)
    if answer is None or not measured.is_answered:
        return replace(observation, compared="not_comparable")
    try:
        is_equal = await asyncio.to_thread(are_equal, copy.answer, answer)
    except NotComparable:
        return replace(observation, compared="not_comparable")
    return replace(observation, compared="equal" if is_equal else "different")


async def _receive(copy: Copy, body: bytes, measured: Measured) -> None:
    """Receives the whole answer of the candidate. Raises: ApiError: as `forward`."""
    target = random.choice(copy.trial.shadows).target
    answer = await forward(target, copy.path, body, request_id=copy.request_id, memory=copy.memory)
    passed_on = measured.begin(answer).body
    if not isinstance(passed_on, bytes):
        async with aclosing(passed_on):
            async for _ in passed_on:
                pass
