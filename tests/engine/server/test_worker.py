"""The engine's thread: if a step raises an error, only the request that caused the error fails; others continue."""

import queue
from collections.abc import Callable, Iterator

import pytest

from engine.fields import InvalidRequest
from engine.request import FinishReason, Request, SamplingParams
from engine.server.errors import EngineBroken, GenerationFailed
from engine.server.worker import Engine, EngineWorker, Report
from tests.engine.server.fake_engine import FakeEngine

POISON = 66


def make_request(request_id: str, *prompt: int) -> Request:
    return Request(request_id, prompt or (10, 11, 12, 13, 14, 15), SamplingParams(max_tokens=50, num_logprobs=0))


class Reader:
    """Runs an engine worker and collects the tokens and the end of each request from its reports."""

    def __init__(self, engine: Engine) -> None:
        self.worker = EngineWorker(engine, deliver=self._deliver)
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self.tokens: dict[str, list[int]] = {}
        self.logprob_tokens: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason | Exception] = {}
        self.worker.start()

    def wait_for(self, *request_ids: str) -> None:
        while not set(request_ids) <= self.ends.keys():
            self._take()

    def close(self) -> None:
        self.worker.stop(10)

    def _deliver(self, reports: list[Report]) -> None:
        for report in reports:
            self._reports.put(report)

    def _take(self) -> None:
        report = self._reports.get(timeout=10)
        assert report.request_id not in self.ends, "a report after the end of the request"
        if report.failure is not None:
            self.ends[report.request_id] = report.failure
            return
        assert report.output is not None
        assert report.output.logprobs is not None or not report.output.token_ids
        self.tokens.setdefault(report.request_id, []).extend(report.output.token_ids)
        token_ids = [logprob.token_id for logprob in report.output.logprobs or ()]
        self.logprob_tokens.setdefault(report.request_id, []).extend(token_ids)
        if report.output.finish_reason is not None:
            self.ends[report.request_id] = report.output.finish_reason


@pytest.fixture
def start() -> Iterator[Callable[[FakeEngine], Reader]]:
    """Yields a function that starts a `Reader`. The fixture closes all readers after the test."""
    started: list[tuple[FakeEngine, Reader]] = []

    def _start(engine: FakeEngine) -> Reader:
        reader = Reader(engine)
        started.append((engine, reader))
        return reader

    yield _start
    for engine, reader in started:
        engine.gate.set()
        reader.close()


Start = Callable[[FakeEngine], Reader]


def test_a_request_gets_its_tokens_and_finish_reason(start: Start) -> None:
    reader = start(FakeEngine())

    reader.worker.submit(make_request("a", 10, 11, 12))
    reader.wait_for("a")

    assert reader.tokens["a"] == [10, 11, 12, 2]
    assert reader.ends["a"] is FinishReason.STOP


def test_a_request_that_the_engine_refuses_gets_invalid_request(start: Start) -> None:
    reader = start(FakeEngine())

    reader.worker.submit(make_request("long", *range(10, 150)))
    reader.wait_for("long")

    assert isinstance(reader.ends["long"], InvalidRequest)


def test_a_cancelled_request_ends_and_leaves_the_engine_without_work(start: Start) -> None:
    engine = FakeEngine(lambda _: range(10, 400), tokens_per_step=1)
    reader = start(engine)
    engine.gate.clear()
    reader.worker.submit(make_request("a"))
    engine.in_step.wait(10)

    reader.worker.cancel("a")
    engine.gate.set()
    reader.wait_for("a")

    assert reader.ends["a"] is FinishReason.CANCELLED
    assert not engine.has_work


def test_cancelling_a_finished_request_has_no_effect(start: Start) -> None:
    engine = FakeEngine()
    reader = start(engine)
    reader.worker.submit(make_request("a"))
    reader.wait_for("a")

    reader.worker.cancel("a")
    reader.worker.submit(make_request("b"))
    reader.wait_for("b")

    assert engine.cancelled == []


def start_with(start: Start, engine: FakeEngine, *requests: Request) -> Reader:
    """Starts a reader and submits the requests. All of them reach the engine before its second step."""
    reader = start(engine)
    engine.gate.clear()
    for request in requests:
        reader.worker.submit(request)
    engine.gate.set()
    return reader


@pytest.mark.parametrize("poison_at", [0, 2, 4])
def test_only_the_request_that_breaks_a_step_fails(start: Start, poison_at: int) -> None:
    engine = FakeEngine(poison=POISON, poison_at=poison_at)

    reader = start_with(
        start, engine, make_request("a"), make_request("bad", POISON, 11, 12, 13, 14), make_request("c", 20, 21, 22)
    )
    reader.wait_for("a", "bad", "c")

    assert isinstance(reader.ends["bad"], GenerationFailed)
    assert reader.ends["a"] is reader.ends["c"] is FinishReason.STOP
    assert reader.tokens["a"] == [10, 11, 12, 13, 14, 15, 2]
    assert reader.tokens["c"] == [20, 21, 22, 2]
    assert reader.worker.broken is None


def test_tokens_delivered_before_a_failed_step_are_not_delivered_again(start: Start) -> None:
    engine = FakeEngine(poison=POISON, poison_at=3, tokens_per_step=3)
    requests = make_request("a", *range(10, 30)), make_request("bad", POISON, *range(30, 50))

    reader = start_with(start, engine, *requests)
    reader.wait_for("a", "bad")

    assert reader.tokens["a"] == [*range(10, 30), 2]
    assert reader.logprob_tokens["a"] == reader.tokens["a"]
    assert reader.tokens["bad"] == [POISON, 30, 31]


def test_only_the_two_requests_that_break_steps_fail(start: Start) -> None:
    bad = [make_request(name, POISON, 11, 12, 13) for name in ("bad 1", "bad 2")]
    requests = bad[0], make_request("a"), bad[1], make_request("b", 20, 21)

    reader = start_with(start, FakeEngine(poison=POISON), *requests)
    reader.wait_for("a", "b", "bad 1", "bad 2")

    assert isinstance(reader.ends["bad 1"], GenerationFailed)
    assert isinstance(reader.ends["bad 2"], GenerationFailed)
    assert (reader.tokens["a"], reader.tokens["b"]) == ([10, 11, 12, 13, 14, 15, 2], [20, 21, 2])


def test_a_request_that_breaks_a_step_alone_fails_without_a_second_attempt(start: Start) -> None:
    engine = FakeEngine(poison=POISON)
    reader = start(engine)

    reader.worker.submit(make_request("bad", POISON, 11, 12, 13))
    reader.wait_for("bad")

    assert isinstance(reader.ends["bad"], GenerationFailed)
    assert engine.added == ["bad"]


def test_new_requests_are_answered_after_a_failed_step(start: Start) -> None:
    reader = start(FakeEngine(poison=POISON))
    reader.worker.submit(make_request("bad", POISON, 11, 12, 13))
    reader.wait_for("bad")

    reader.worker.submit(make_request("a"))
    reader.wait_for("a")

    assert reader.ends["a"] is FinishReason.STOP


def test_if_requests_cannot_be_cancelled_all_later_requests_get_engine_broken(start: Start) -> None:
    engine = FakeEngine()
    engine.broken = True
    reader = start(engine)

    reader.worker.submit(make_request("a"))
    reader.wait_for("a")
    reader.worker.submit(make_request("b"))
    reader.wait_for("b")

    assert isinstance(reader.ends["a"], EngineBroken)
    assert isinstance(reader.ends["b"], EngineBroken)
    assert reader.worker.broken == "RuntimeError: the device is lost"


def test_the_error_of_a_failed_request_does_not_contain_the_engines_exception_message(start: Start) -> None:
    reader = start(FakeEngine(poison=POISON))

    reader.worker.submit(make_request("bad", POISON, 11, 12, 13))
    reader.wait_for("bad")

    assert "poisoned" not in str(reader.ends["bad"])
