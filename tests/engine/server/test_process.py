"""The server's process with a real, tiny model, asked through the official `openai` package."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from tests.engine.server.live import wait_until
from tests.tiny_model import make_tiny_model

TOKEN = "secret-of-the-test"
ASK: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "one two one two one"}]}


@dataclass(frozen=True, slots=True)
class Server:
    process: subprocess.Popen[str]
    ready: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ready['port']}"

    def client(self, api_key: str = TOKEN) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=60)

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.url + path, headers={"authorization": f"Bearer {TOKEN}"})

    def running(self) -> float:
        (line,) = [x for x in self.get("/metrics").text.splitlines() if x.startswith("vllm:num_requests_running{")]
        return float(line.split()[-1])


Start = Callable[..., Server]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), "llama", max_position_embeddings=4096)


def launch(*arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | {"SLIPSTREAM_ENGINE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "engine.server", "--model-name", "tiny", "--port", "0", *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def start(model_dir: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def _start(*arguments: str) -> Server:
        process = launch("--model-dir", str(model_dir), *arguments)
        processes.append(process)
        assert process.stdout is not None
        return Server(process, json.loads(process.stdout.readline()))

    yield _start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def server(start: Start) -> Server:
    return start("--drafter", "ngram")


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with server.client() as client:
        yield client


def text_of(completion: Any) -> str:
    return str(completion.choices[0].message.content)


def test_the_ready_line_says_where_it_listens(server: Server) -> None:
    assert server.ready["event"] == "ready"
    assert (server.ready["model"], server.ready["host"], server.ready["drafter"]) == ("tiny", "127.0.0.1", "ngram")
    assert server.ready["pid"] == server.process.pid
    assert server.get("/health").status_code == 200


def test_a_seed_makes_an_answer_come_again(client: openai.OpenAI) -> None:
    first, again, other = (
        client.chat.completions.create(**ASK, max_tokens=20, temperature=1.0, seed=seed) for seed in (5, 5, 6)
    )

    assert text_of(first) == text_of(again)
    assert text_of(first) != text_of(other)
    assert first.choices[0].finish_reason == "length"
    assert first.usage is not None
    assert first.usage.completion_tokens == 20


def test_a_drawn_seed_is_told_and_makes_the_answer_come_again(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(**ASK, max_tokens=20)
    assert first.model_extra is not None

    again = client.chat.completions.create(**ASK, max_tokens=20, seed=first.model_extra["seed"])

    assert text_of(first) == text_of(again)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_stream_is_the_whole_answer_in_pieces(client: openai.OpenAI, temperature: float) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 40, "temperature": temperature, "seed": 3}
    whole = client.chat.completions.create(**options)

    chunks = list(client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}))

    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == text_of(whole)
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert chunks[-1].model_extra is not None
    assert whole.model_extra is not None
    figures = chunks[-1].model_extra["metrics"]["speculative_decoding"]
    assert figures["num_spec_steps"] == sum(figures["acceptance_histogram"])
    accepted = sum(length * passes for length, passes in enumerate(figures["acceptance_histogram"]))
    assert figures["num_accepted_draft_tokens"] == accepted


def test_an_answer_stops_before_a_stop_string(client: openai.OpenAI) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 40, "temperature": 0.8, "seed": 3}
    whole = text_of(client.chat.completions.create(**options))
    stop = whole[6:8]

    stopped = client.chat.completions.create(**options, stop=[stop])

    assert text_of(stopped) == whole[: whole.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.usage is not None
    assert stopped.usage.completion_tokens < 40


def test_several_choices_differ_and_the_first_is_the_lone_one(client: openai.OpenAI) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 20, "seed": 3}

    several = client.chat.completions.create(**options, n=3)

    texts = [choice.message.content for choice in several.choices]
    assert len(set(texts)) == 3
    assert texts[0] == text_of(client.chat.completions.create(**options))


def test_log_probabilities_come_as_the_package_expects(client: openai.OpenAI) -> None:
    greedy = client.chat.completions.create(**ASK, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)

    assert greedy.choices[0].logprobs is not None
    entries = greedy.choices[0].logprobs.content
    assert entries is not None
    assert len(entries) == 5
    for entry in entries:
        assert entry.bytes == entry.top_logprobs[0].bytes  # greedy takes the best
        assert entry.logprob == entry.top_logprobs[0].logprob < 0
        assert [top.logprob for top in entry.top_logprobs] == sorted(
            (top.logprob for top in entry.top_logprobs), reverse=True
        )


def test_a_text_completion_takes_text_or_ids(client: openai.OpenAI) -> None:
    by_text = client.completions.create(model="tiny", prompt="hi", max_tokens=10, temperature=0, logprobs=2)
    by_ids = client.completions.create(model="tiny", prompt=[75, 76], max_tokens=10, temperature=0)

    assert by_text.choices[0].logprobs is not None
    assert len(by_text.choices[0].logprobs.token_logprobs or []) == 10
    assert by_ids.usage is not None
    assert by_ids.usage.prompt_tokens == 2


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_errors_are_the_packages_own(server: Server, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(**ASK | {"model": "other"})
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(**ASK, temperature=5)
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(**ASK, reasoning_effort="high")
    with pytest.raises(openai.AuthenticationError) as foreign, server.client(api_key="wrong") as stranger:
        stranger.models.list()

    assert missing.value.code == "model_not_found"
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    assert (unsupported.value.param, unsupported.value.code) == ("reasoning_effort", "unsupported_parameter")
    assert foreign.value.code == "invalid_api_key"


def test_a_client_that_leaves_stops_the_generation(server: Server, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(**ASK, stream=True, n=2, extra_body={"ignore_eos": True})
    next(stream)
    assert server.running() == 2

    stream.close()

    wait_until(lambda: server.running() == 0)


def test_drafting_does_not_change_the_answer(start: Start, client: openai.OpenAI) -> None:
    options: dict[str, Any] = ASK | {"max_tokens": 60, "temperature": 0.8, "seed": 11, "n": 4}
    drafted = client.chat.completions.create(**options)

    with start("--drafter", "none").client() as plain_client:
        plain = plain_client.chat.completions.create(**options)

    assert [choice.message.content for choice in drafted.choices] == [
        choice.message.content for choice in plain.choices
    ]


def test_sigterm_finishes_what_was_begun_and_refuses_the_rest(start: Start) -> None:
    server = start()
    with server.client() as client:
        stream = client.chat.completions.create(
            **ASK, stream=True, max_tokens=1500, seed=1, extra_body={"ignore_eos": True}
        )
        chunks = [next(stream)]

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.get("/health").status_code == 503)
        with pytest.raises(openai.InternalServerError) as refused:
            client.chat.completions.create(**ASK)
        chunks += stream

    assert refused.value.code == "server_draining"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert server.process.wait(20) == 0


def test_what_outlasts_the_drain_gets_an_error_event(start: Start) -> None:
    server = start("--drain-seconds", "0.2")
    with server.client() as client:
        stream = client.chat.completions.create(**ASK, stream=True, extra_body={"ignore_eos": True})
        next(stream)
        server.process.send_signal(signal.SIGTERM)

        with pytest.raises(openai.APIError) as cut:
            list(stream)

    assert cut.value.code == "server_draining"
    assert server.process.wait(20) == 0


def test_a_model_that_cannot_be_loaded_is_said_in_one_line(tmp_path: Path) -> None:
    process = launch("--model-dir", str(tmp_path / "nothing"))

    output, _ = process.communicate(timeout=120)

    event = json.loads(output)
    assert (event["event"], event["code"], process.returncode) == ("failed", "model_not_loadable", 1)
    assert "nothing" in event["message"]
