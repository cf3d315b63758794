"""`echo` returns the prompt's text and log-probabilities with a completion, as evaluation harnesses request."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.generate import generate
from engine.load import load_engine
from engine.loop import Engine
from engine.request import Request, SamplingParams, StepOutput, TokenLogprob
from engine.tokenizer import Tokenizer
from tests.engine.server.live import Live, serve
from tests.tiny_model import make_tiny_model

PROMPT = "Grüße an alle, die hier zählen: eins zwei drei vier"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def live(folder: Path) -> Iterator[Live]:
    engine = load_engine(folder, drafter="ngram", config=EngineConfig(device="cpu", prefill_chunk=16))
    with serve(engine, Tokenizer.load(folder), max_body_bytes=65536) as live:
        yield live


def expected_logprobs(live: Live, ids: list[int]) -> list[float]:
    """Returns the log-probability of each token after the first, computed in one pass over all tokens."""
    model = live.app.async_engine.worker.engine.model  # type: ignore[attr-defined]  # a real engine
    with torch.inference_mode():
        logits = model.logits(model.hidden_states(torch.tensor(ids)).final)
    return [float(torch.log_softmax(row, -1)[token]) for row, token in zip(logits, ids[1:], strict=False)]


def test_an_echoed_prompt_has_the_log_probabilities_of_its_tokens(live: Live, folder: Path) -> None:
    ids = Tokenizer.load(folder).encode(PROMPT)

    choice = live.complete(PROMPT, echo=True, logprobs=1, max_tokens=1).json()["choices"][0]

    logprobs = choice["logprobs"]
    generated = len(logprobs["tokens"]) - len(ids)
    assert choice["text"].startswith(PROMPT)
    assert generated == 1
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0], logprobs["text_offset"][0]) == (None, None, 0)
    assert logprobs["token_logprobs"][1:-1] == expected_logprobs(live, ids)
    likeliest = [max(top.values()) for top in logprobs["top_logprobs"][1:]]
    assert all(best >= own for best, own in zip(likeliest, logprobs["token_logprobs"][1:], strict=True))
    assert logprobs["text_offset"][-1] == len(PROMPT)


def test_a_cached_prompt_gets_the_same_log_probabilities_again(live: Live) -> None:
    body: dict[str, Any] = {"echo": True, "logprobs": 2, "max_tokens": 3}

    first, second = (live.complete(PROMPT * 4, **body).json()["choices"][0] for _ in range(2))

    assert first == second


def test_each_of_several_prompts_gets_its_own_log_probabilities(live: Live) -> None:
    prompts = ["ab" * 30, "x", PROMPT]
    body: dict[str, Any] = {"echo": True, "logprobs": 0, "max_tokens": 2}

    together = live.complete(prompts, **body).json()["choices"]

    alone = [live.complete(prompt, **body).json()["choices"][0] for prompt in prompts]
    assert [choice["logprobs"] for choice in together] == [choice["logprobs"] for choice in alone]


def test_without_log_probabilities_only_the_text_is_echoed(live: Live) -> None:
    plain = live.complete(PROMPT, max_tokens=5).json()
    echo = live.complete(PROMPT, max_tokens=5, echo=True).json()

    assert echo["choices"][0] == plain["choices"][0] | {"text": PROMPT + plain["choices"][0]["text"]}
    assert echo["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]


def test_echo_is_refused_for_a_streamed_completion(live: Live) -> None:
    error = live.complete(PROMPT, echo=True, stream=True).json()["error"]

    assert (error["param"], error["code"]) == ("echo", "unsupported_parameter")


def test_preemption_does_not_change_the_log_probabilities_of_a_prompt(folder: Path) -> None:
    sampling = SamplingParams(max_tokens=80, temperature=0.0, num_logprobs=0, prompt_logprobs=True, ignore_eos=True)
    requests = [Request(f"r{i}", tuple((i * 7 + k) % 200 + 3 for k in range(100)), sampling) for i in range(4)]

    def run(engine: Engine, some: list[Request]) -> dict[str, tuple[TokenLogprob, ...]]:
        found: dict[str, tuple[TokenLogprob, ...]] = {}

        def keep(output: StepOutput) -> None:
            if output.prompt_logprobs is not None:
                found[output.request_id] = output.prompt_logprobs

        generate(engine, some, on_output=keep)
        return found

    config = EngineConfig(device="cpu", prefill_chunk=16)
    alone: dict[str, tuple[TokenLogprob, ...]] = {}
    for request in requests:
        alone |= run(load_engine(folder, drafter="none", config=config), [request])
    model = load_engine(folder, drafter="none", config=config).model
    cache_bytes = 420 * KVCache.slot_bytes(model.config, model.dtype)  # too few slots for 4 sequences
    small = load_engine(folder, drafter="ngram", config=replace(config, kv_cache_bytes=cache_bytes))

    together = run(small, requests)

    assert small.counters.num_preemptions > 0
    assert together == alone
    assert {len(one) for one in alone.values()} == {99}
