"""Limits keep one client from blocking the server, for example with slow reads or an incomplete request."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.counters import Counters
from engine.request import FinishReason, Request, SamplingParams, StepOutput, TokenLogprob
from engine.server import connection, generations
from engine.server.async_engine import AsyncEngine
from engine.server.health import MIN_OBSERVED_STEPS, stall_limit
from engine.server.queue_time import QueueTime
from engine.server.worker import EngineWorker, Report
from engine.tokenizer import Tokenizer
from tests.engine.server.fake_engine import FakeEngine
from tests.engine.server.live import MODEL, Live, serve, wait_until
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(make_tiny_model(tmp_path_factory.mktemp("model"), "llama", num_layers=1))


@pytest.fixture
def live(tokenizer: Tokenizer) -> Iterator[Live]:
    with serve(FakeEngine(), tokenizer) as live:
        yield live


def test_the_retry_time_follows_from_the_rate_at_which_recent_choices_ended() -> None:
    queue = QueueTime()
    assert queue.seconds_until(3, now=0.0) == 1  # no choice has ended yet

    for second in range(0, 40, 4):
        queue.choice_ended(float(second))  # one choice every 4 seconds

    assert queue.seconds_until(1, now=40.0) == 4
    assert queue.seconds_until(5, now=40.0) == 20
    assert queue.seconds_until(500, now=40.0) == 60  # the maximum


def make_report(*token_ids: int, finish_reason: FinishReason | None = None) -> Report:
    logprobs = tuple(TokenLogprob(token, -0.5, ()) for token in token_ids)
    return Report("r", StepOutput("r", token_ids, logprobs, finish_reason, None))


def test_outputs_that_a_slow_client_has_not_read_are_merged() -> None:
    async def read() -> tuple[StepOutput, StepOutput]:
        async_engine = AsyncEngine(FakeEngine(), max_open=1)
        generation = async_engine.open([Request("r", (1,), SamplingParams(max_tokens=9))])
        for report in (make_report(1, 2), make_report(3), make_report()):
            generation.on_report(report)
        _, first = await generation.next()
        generation.on_report(make_report(4))
        generation.on_report(make_report(5, finish_reason=FinishReason.STOP))
        _, second = await generation.next()
        return first, second

    first, second = asyncio.run(read())

    assert (first.token_ids, first.finish_reason) == ((1, 2, 3), None)
    assert (second.token_ids, second.finish_reason) == ((4, 5), FinishReason.STOP)
    assert [logprob.token_id for logprob in second.logprobs or ()] == [4, 5]
    assert first.accepted == [True, False, False]  # only the first token of the step with two tokens was drafted
    assert second.accepted == [False, False]


def test_the_stall_limit_is_short_only_for_decoding_steps_after_enough_measurements() -> None:
    worker = EngineWorker(FakeEngine(), deliver=lambda reports: None)
    worker.longest_step_seconds = 0.2
    assert stall_limit(worker) == 60.0  # too few steps have been measured

    worker.num_steps = MIN_OBSERVED_STEPS
    assert stall_limit(worker) == 10.0  # the minimum
    worker.longest_step_seconds = 1.0
    assert stall_limit(worker) == 20.0  # 20 times the longest step
    worker.reads_prompts = True
    assert stall_limit(worker) == 60.0
    worker.reads_prompts, worker.in_call = False, True
    assert stall_limit(worker) == 60.0


def test_a_call_on_the_engine_thread_returns_the_result_or_raises_the_error() -> None:
    engine = FakeEngine()
    worker = EngineWorker(engine, deliver=lambda reports: None)
    worker.start()

    def fail(_: object) -> Counters:
        raise ValueError("no")

    assert worker.call(lambda engine: engine.counters).result(10) is engine.counters
    assert isinstance(worker.call(fail).exception(10), ValueError)
    assert worker.broken is None
    worker.stop(10)


def connect(live: Live) -> socket.socket:
    """Opens a connection whose receive buffer has only a few kilobytes."""
    host, port = live.url.removeprefix("http://").split(":")
    client = socket.socket()
    client.settimeout(20)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect((host, int(port)))
    return client


@pytest.mark.parametrize("sent", [b"", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-half"])
def test_a_connection_without_a_complete_header_is_closed(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connection, "KEEP_ALIVE_SECONDS", 0.1)
    with serve(FakeEngine(), tokenizer) as live, connect(live) as client:
        client.sendall(sent)

        assert client.recv(1) == b""


def test_a_client_that_does_not_read_is_disconnected(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "SEND_SECONDS", 0.2)
    engine = FakeEngine(lambda _: tokenizer.encode("x" * 500), tokens_per_step=20)
    with serve(engine, tokenizer) as live, connect(live) as client:
        body = b'{"prompt": "a", "stream": true, "logprobs": 20, "max_tokens": 500, "n": 4}'
        head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer secret-of-the-test\r\n"
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

        wait_until(lambda: live.app.generations.num_active == 1)
        wait_until(lambda: live.app.generations.num_active == 0)
        assert live.app.async_engine.num_open == 0


def test_requests_beyond_the_limit_of_open_requests_are_refused(live: Live) -> None:
    live.app.generations.num_active = 24  # twice the 12 choices that may run or wait

    refused = live.complete()

    live.app.generations.num_active = 0
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


def test_only_a_chat_whose_template_takes_too_much_memory_gets_400(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, num_layers=1)
    source = "{{ 'x' * 10 ** 10 if 'bomb' in messages[0].content else messages[0].content }}"
    (folder / "chat_template.jinja").write_text(source)
    chats = [{"model": MODEL, "messages": [{"role": "user", "content": text}]} for text in ("bomb", "good")]

    with serve(FakeEngine(), Tokenizer.load(folder)) as live:
        refused, answered = (live.http.post("/v1/chat/completions", json=chat) for chat in chats)

    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "the model's chat template takes too much memory"
    assert answered.json()["choices"][0]["message"]["content"] == "good"
