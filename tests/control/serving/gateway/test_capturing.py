"""The capture of requests is bounded, and delays neither the counting of usage nor other organizations."""

import asyncio
import datetime as dt
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from control.billing.usage.services import Tokens
from control.core.database_threads import DatabaseThreads
from control.serving.gateway import accounting, capturing
from control.serving.gateway.accounting import Accounts
from control.serving.gateway.capturing import PER_TURN, Captures
from control.serving.gateway.ended import Ended
from control.tenants.authentication.caller import Caller

NOON = dt.datetime(2026, 3, 10, 12, 0, tzinfo=dt.UTC)
WAIT_SECONDS = 20.0


def ended(organization_id: str, *, num_bytes: int = 10) -> Ended:
    return Ended(
        caller=Caller(organization_id=organization_id),
        model="m",
        at=NOON,
        tokens=Tokens(input=1, output=1),
        reservation_id=None,
        body=b"x" * num_bytes,
    )


class SlowKeep:
    """Takes the place of `capturing.keep`. Each call waits for `release`."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.release = threading.Event()

    def __call__(self, organization_id: str, some: Sequence[Ended]) -> None:
        self.calls.append((organization_id, len(some)))
        assert self.release.wait(WAIT_SECONDS)


@pytest.fixture
def keep(monkeypatch: pytest.MonkeyPatch) -> SlowKeep:
    slow = SlowKeep()
    monkeypatch.setattr(capturing, "keep", slow)
    return slow


@asynccontextmanager
async def database_threads() -> AsyncIterator[DatabaseThreads]:
    threads = DatabaseThreads(4)
    try:
        yield threads
    finally:
        await threads.close()


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


def test_usage_is_counted_while_the_capture_of_requests_is_slow(
    keep: SlowKeep, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Ended] = []

    def write(some: Sequence[Ended]) -> list[Ended]:
        written.extend(some)
        return []

    monkeypatch.setattr(accounting, "write", write)
    monkeypatch.setattr(accounting, "to_capture", list)

    async def run() -> None:
        async with database_threads() as threads:
            accounts = Accounts(threads)
            accounts.end(ended("org"))
            await until(lambda: len(keep.calls) == 1)
            for count in (2, 3):
                accounts.end(ended("org"))
                await until(lambda count=count: len(written) == count)
            assert len(keep.calls) == 1, "the first capture has not ended"
            keep.release.set()
            await accounts.close()

    asyncio.run(run())

    assert sum(number for _, number in keep.calls) == 3


def test_organizations_take_turns_in_the_capture_of_requests(keep: SlowKeep) -> None:
    async def run() -> None:
        async with database_threads() as threads:
            captures = Captures(threads)
            captures.add(ended("loud") for _ in range(5 * PER_TURN))
            await until(lambda: keep.calls)
            captures.add([ended("quiet")])
            keep.release.set()
            await captures.close()

    asyncio.run(run())

    assert [name for name, _ in keep.calls[:3]] == ["loud", "loud", "quiet"]
    assert sum(number for name, number in keep.calls if name == "loud") == 5 * PER_TURN


def test_requests_beyond_the_limit_are_not_captured(keep: SlowKeep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capturing, "MAX_WAITING_BYTES", 100)
    monkeypatch.setattr(capturing, "MAX_ALL_WAITING_BYTES", 150)

    async def run() -> None:
        async with database_threads() as threads:
            captures = Captures(threads)
            captures.add([ended("a", num_bytes=60), ended("a", num_bytes=60), ended("a", num_bytes=40)])
            captures.add([ended("b", num_bytes=60), ended("b", num_bytes=50)])
            keep.release.set()
            await captures.close()
            captures.add([ended("b", num_bytes=100)])
            await captures.close()

    asyncio.run(run())

    assert keep.calls == [("a", 2), ("b", 1), ("b", 1)]


def test_an_error_in_the_capture_for_one_organization_does_not_affect_another(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []

    def keep(organization_id: str, some: Sequence[Ended]) -> None:
        if organization_id == "bad":
            raise RuntimeError
        kept.append(organization_id)

    monkeypatch.setattr(capturing, "keep", keep)

    async def run() -> None:
        async with database_threads() as threads:
            captures = Captures(threads)
            captures.add([ended("bad"), ended("good")])
            await captures.close()

    asyncio.run(run())

    assert kept == ["good"]
