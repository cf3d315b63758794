"""Sends copies of requests to the candidate of a rollout in mode `shadow`, and compares its answers.

A copy is sent after the caller has got the whole answer, so it can neither delay nor change the caller's request. It is
not recorded as usage. Copies wait in a queue with a limited number of entries and bytes; while it is full, further
copies are dropped and counted. A copy is discarded, and one that runs is ended, when its rollout's trial has ended.
"""

import asyncio
import random
from collections import Counter, deque
from contextlib import aclosing
from dataclasses import dataclass, replace
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

MAX_WAITING = 64  # copies
MAX_WAITING_BYTES = 16 << 20
MAX_BODY_BYTES = 256 << 10  # of a request that is copied
MAX_RUNNING = 4
CHECK_SECONDS = 1.0  # how often a rollout is read while its copies wait or run
COPY_SECONDS = 600.0  # the longest time for one copy


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


class Shadows:
    """The waiting copies, and the tasks that send them. It belongs to one event loop."""

    def __init__(self, threads: DatabaseThreads) -> None:
        self._threads = threads
        self._waiting: deque[Copy] = deque()
        self._num_bytes = 0
        self._uncounted: Counter[Observation] = Counter()  # not written yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_active: dict[str, tuple[float, bool]] = {}  # by rollout: when it was read, and the result

    def offer(self, copy: Copy) -> None:
        """Adds a copy, or counts it as dropped. Never waits."""
        if len(self._waiting) >= MAX_WAITING or self._num_bytes + copy.num_bytes > MAX_WAITING_BYTES:
            self.note(replace(copy.observation("dropped"), request_id=""))
            return
        self._waiting.append(copy)
        self._num_bytes += copy.num_bytes
        self._start()

    def note(self, observation: Observation) -> None:
        """Counts something about a copy that is not sent. Never waits."""
        self._uncounted[observation] += 1
        self._start()

    async def close(self) -> None:
        """Ends the running copies and discards the waiting ones."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start(self) -> None:
        if len(self._tasks) < MAX_RUNNING:
            task = asyncio.create_task(self._send_all())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_all(self) -> None:
        while self._waiting or self._uncounted:
            try:
                await self._write_uncounted()
                if self._waiting:
                    copy = self._waiting.popleft()
                    self._num_bytes -= copy.num_bytes
                    await self._send_during_trial(copy)
            except Exception:  # the next copies must still be sent
                log.exception("a copy of a request was not compared")

    async def _write_uncounted(self) -> None:
        if self._uncounted:
            noted, self._uncounted = self._uncounted, Counter()
            await self._threads.run(evidence_add, list(noted.elements()))

    async def _send_during_trial(self, copy: Copy) -> None:
        """Discards the copy, or ends it, if its rollout's trial has ended."""
        if not await self._is_in_trial(copy):
            return
        sending, begun = asyncio.ensure_future(_answered(copy)), monotonic()
        try:
            while not sending.done() and await self._is_in_trial(copy) and monotonic() - begun < COPY_SECONDS:
                await asyncio.wait([sending], timeout=CHECK_SECONDS)
            observation = sending.result() if sending.done() else copy.observation("not_comparable")
            await self._threads.run(evidence_add, [observation])
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _is_in_trial(self, copy: Copy) -> bool:
        rollout_id = copy.trial.rollout_id
        read_at, is_active = self._is_active.get(rollout_id, (0.0, False))
        if monotonic() - read_at >= CHECK_SECONDS or not read_at:
            is_active = await self._threads.run(_read_is_in_trial, copy.organization_id, rollout_id)
            if len(self._is_active) > 1000:
                self._is_active.clear()
            self._is_active[rollout_id] = (monotonic(), is_active)
        return is_active


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
    except NotAccepted:  # it has no place for the copy, or it is about to stop
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
