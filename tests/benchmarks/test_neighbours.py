"""`python -m benchmarks.neighbours` measures one organization's waiting times while another sends expensive requests.

Callers send the expensive requests again and again. A cycle is over when the server has answered each of these requests
once. A window of measurements lasts at least as long as one cycle.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.gateway.load import Address, read
from benchmarks.gateway.server import helper
from benchmarks.neighbours import __main__ as neighbours
from benchmarks.neighbours.callers import PAUSE_SECONDS, call_all
from control.serving.deployments import health
from control.serving.deployments.engine_tls import EngineAddress

SECONDS = 60.0  # limit of each wait
QUIET = Address(port=1, token="quiet")


class Server:
    """A fake server. It answers requests to the paths in `held` when `release` is called, and all other requests at
    once."""

    def __init__(self, *, held: Collection[str] = (), num_refused: int = 0) -> None:
        self.paths: list[str] = []  # paths of all requests
        self.num_refused = num_refused  # number of further requests that are refused with 429
        self._held = held
        self._waiting: list[asyncio.StreamReader] = []
        self._received = asyncio.Event()

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, Any]:
        reader = asyncio.StreamReader()
        return reader, _Writer(self, reader)

    def receive(self, request: bytes, reader: asyncio.StreamReader) -> None:
        self.paths.append(request.split()[1].decode())
        self._received.set()
        if self.paths[-1] in self._held:
            self._waiting.append(reader)
        elif self.num_refused:
            self.num_refused -= 1
            _answer(reader, 429)
        else:
            _answer(reader, 200)

    def release(self) -> None:
        self._held = ()
        for reader in self._waiting:
            _answer(reader, 200)

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not is_true():
                self._received.clear()
                await self._received.wait()


class _Writer:
    def __init__(self, server: Server, reader: asyncio.StreamReader) -> None:
        self._server, self._reader = server, reader

    def write(self, request: bytes) -> None:
        self._server.receive(request, self._reader)

    async def drain(self) -> None: ...
    def close(self) -> None: ...


def _answer(reader: asyncio.StreamReader, status: int) -> None:
    reader.feed_data(b"HTTP/1.1 %d X\r\n\r\n" % status)
    reader.feed_eof()


@asynccontextmanager
async def called(monkeypatch: pytest.MonkeyPatch, server: Server, *paths: str) -> AsyncIterator[asyncio.Event]:
    """Lets two callers request the paths. Yields an event that is set when each path has been answered."""
    monkeypatch.setattr("benchmarks.neighbours.callers.asyncio.open_connection", server.connect)
    address, is_over = Address(port=1, token="loud"), asyncio.Event()
    requests = [read(address, path) for path in paths]
    callers = call_all(address, requests, num_callers=2, pause_seconds=0, on_cycle=is_over.set)
    try:
        yield is_over
    finally:
        for caller in callers:
            caller.remove_done_callback(asyncio.Task.result)
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


def test_a_cycle_is_over_when_its_slowest_request_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = Server(held=["/slow"])
        async with called(monkeypatch, server, "/a", "/b", "/c", "/slow") as is_over:
            await server.wait_until(lambda: server.paths.count("/slow") == 2)  # both callers wait
            assert set(server.paths) == {"/a", "/b", "/c", "/slow"}
            assert not is_over.is_set()
            server.release()
            await asyncio.wait_for(is_over.wait(), SECONDS)

    asyncio.run(run())


def test_a_request_that_is_refused_with_429_does_not_count_as_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        server = Server(num_refused=10)
        async with called(monkeypatch, server, "/a", "/b") as is_over:
            await asyncio.wait_for(is_over.wait(), SECONDS)

        assert server.num_refused == 0
        assert len(server.paths) >= 10 + 2

    asyncio.run(run())


def test_callers_begin_at_different_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        paths = ("/a", "/b", "/c", "/d")
        server = Server(held=paths)
        async with called(monkeypatch, server, *paths):
            await server.wait_until(lambda: len(server.paths) == 2)
            assert sorted(server.paths) == ["/a", "/c"]

    asyncio.run(run())


@pytest.mark.parametrize("num_before", [1, 3 * neighbours.NUM_REQUESTS])
def test_a_window_lasts_until_the_cycle_has_ended_and_enough_requests_were_sent(
    monkeypatch: pytest.MonkeyPatch, num_before: int
) -> None:
    async def run() -> tuple[int, dict[str, float], list[str]]:
        reported: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        num_sent = 0

        async def send(*_: object) -> float:
            nonlocal num_sent
            num_sent += 1
            if num_sent == 2 * num_before:  # one read and one first token each time
                reported.set_result("cycle")
            await asyncio.sleep(0)
            return 0.001

        async def cycle() -> str:
            return await reported

        monkeypatch.setattr(neighbours, "seconds_to_first_byte", send)
        failures: list[str] = []
        found = await neighbours.p95(QUIET, failures, asyncio.create_task(cycle()))
        return num_sent, found, failures

    monkeypatch.setattr(neighbours, "seconds_of_claims", lambda token, number: [0.002] * number)
    monkeypatch.setattr(neighbours, "MIN_WINDOW_SECONDS", 0.0)
    num_sent, found, failures = asyncio.run(run())

    assert 0 <= num_sent - 2 * max(num_before, neighbours.NUM_REQUESTS) <= 2 * 3, (
        "the window ends a few requests after the cycle"
    )
    assert found == {"read": pytest.approx(1), "first token": pytest.approx(1), "claim": pytest.approx(2)}
    assert failures == []


def test_a_window_is_longer_than_the_pauses_of_the_callers() -> None:
    assert max(PAUSE_SECONDS.values()) < neighbours.MIN_WINDOW_SECONDS


def test_a_window_whose_cycle_never_ends_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(*_: object) -> float:
        return 0.001

    async def run() -> list[str]:
        async def never() -> str:
            await asyncio.Event().wait()
            return ""

        failures: list[str] = []
        cycle = asyncio.create_task(never())
        await neighbours.p95(QUIET, failures, cycle)
        cycle.cancel()
        return failures

    monkeypatch.setattr(neighbours, "seconds_to_first_byte", send)
    monkeypatch.setattr(neighbours, "seconds_of_claims", lambda token, number: [0.002] * number)
    monkeypatch.setattr(neighbours, "MAX_WINDOW_SECONDS", -1.0)

    (failure,) = asyncio.run(run())
    assert "was not answered within" in failure


async def _health_of_the_engine() -> bool:
    async with helper("engine") as port:
        with health.engine_client() as client:
            check = await asyncio.to_thread(health.probe, client, EngineAddress("127.0.0.1", int(port)), "token")
    return check.is_healthy


def test_the_supervisor_considers_the_benchmarks_engine_healthy() -> None:
    assert asyncio.run(_health_of_the_engine())
