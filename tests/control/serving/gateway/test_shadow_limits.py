"""The queue of copies for shadow rollouts: its limits in bytes, and what counts as dropped. No database, no engine."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from control.core.database_threads import DatabaseThreads
from control.serving.gateway import shadowing
from control.serving.gateway.routes import Trial
from control.serving.gateway.shadowing import Copy, Shadows
from control.serving.gateway.upstream import Full
from control.serving.rollouts.evidence import Observation, evidence_add

BODY = b"b" * 40
ANSWER = b"a" * 20


class Recorder(DatabaseThreads):
    """Says that each trial goes on, and keeps the observations instead of writing them."""

    def __init__(self) -> None:
        super().__init__(1)
        self.written: list[Observation] = []

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if function is evidence_add:
            self.written += args[0]
        return True

    def compared(self) -> list[tuple[str, str | None]]:
        return [(each.rollout_id, each.compared) for each in self.written]


def copy_for(rollout_id: str) -> Copy:
    trial = Trial(rollout_id=rollout_id, side=None, canary_id="dep_c")
    return Copy(
        organization_id="org", trial=trial, request_id="req", path="/v1/p", body=BODY, answer=ANSWER, memory=None
    )


def test_the_bytes_that_wait_for_all_rollouts_together_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadowing, "MAX_ALL_WAITING_BYTES", 100)  # a copy has 60
    threads = Recorder()

    async def run() -> None:
        shadows = Shadows(threads)
        for rollout_id in ("one", "two"):  # each has a queue of its own
            shadows.offer(copy_for(rollout_id))
        await shadows.close()

    asyncio.run(run())
    assert ("two", "dropped") in threads.compared()
    assert ("one", "dropped") not in threads.compared()


def test_a_copy_that_is_sent_frees_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadowing, "MAX_WAITING_BYTES", 100)
    threads = Recorder()

    async def answered(copy: Copy) -> Observation:
        return copy.observation("equal")

    async def run() -> None:
        shadows = Shadows(threads)
        for number in (1, 2, 3):
            shadows.offer(copy_for("one"))
            while len(threads.written) < number:
                await asyncio.sleep(0)
        await shadows.close()

    monkeypatch.setattr(shadowing, "_answered", answered)
    asyncio.run(asyncio.wait_for(run(), 10))
    assert threads.compared() == [("one", "equal")] * 3


def test_a_copy_for_which_the_candidate_has_no_place_counts_as_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing about the candidate's answers, so it must not count as one that cannot be compared."""

    async def receive(*_: object) -> None:
        raise Full(429, "full", "deployment_queue_full")

    monkeypatch.setattr(shadowing, "_receive", receive)
    monkeypatch.setattr(shadowing, "repeated_request", lambda body, answer: body)

    observation = asyncio.run(shadowing._answered(copy_for("one")))

    assert (observation.compared, observation.ended) == ("dropped", "not_counted")
