"""If a step of the real engine fails, only the request at fault fails. The others are recomputed with equal answers."""

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.generate import generate
from engine.load import load_engine
from engine.loop import Engine
from engine.models.base import Hidden, Rows
from engine.request import FinishReason, Request, SamplingParams
from engine.server.errors import GenerationFailed
from tests.engine.server.test_worker import Reader
from tests.tiny_model import make_tiny_model


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    model_dir = make_tiny_model(tmp_path / "model", "llama")
    return load_engine(model_dir, drafter="ngram", config=EngineConfig(max_batch_size=4))


def make_requests() -> list[Request]:
    prompts = [(10, 11, 12) * 5, (20, 21) * 4, (30,) * 9]
    common = SamplingParams(max_tokens=60, temperature=0.0, ignore_eos=True, num_logprobs=0)
    return [Request(f"r{i}", prompt, replace(common, seed=i)) for i, prompt in enumerate(prompts)]


def make_request_fail(engine: Engine, monkeypatch: pytest.MonkeyPatch, request_id: str, *, after: int) -> None:
    """While the engine has this request, lets `after` forward passes succeed, and every later one raise an error."""
    forward = engine.model.forward
    num_passes = 0

    def breaking_forward(rows: Rows, cache: KVCache, tap_layers: tuple[int, ...] = ()) -> Hidden:
        nonlocal num_passes
        if engine.scheduler.find(request_id) is not None:
            num_passes += 1
            if num_passes > after:
                raise RuntimeError("a pass that breaks")
        return forward(rows, cache, tap_layers)

    monkeypatch.setattr(engine.model, "forward", breaking_forward)


@pytest.mark.parametrize("after", [3, 10, 20, 30])
def test_a_failing_request_does_not_change_the_answers_of_other_requests(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    requests = make_requests()
    expected = {completion.request_id: completion.token_ids for completion in generate(engine, requests)}
    make_request_fail(engine, monkeypatch, "bad", after=after)
    bad = replace(requests[0], request_id="bad")

    with closing(Reader(engine)) as reader:
        for request in [*requests[:2], bad, requests[2]]:
            reader.worker.submit(request)
        reader.wait_for("bad", "r0", "r1", "r2")

    assert isinstance(reader.ends["bad"], GenerationFailed)
    for request in requests:
        assert reader.ends[request.request_id] is FinishReason.LENGTH
        assert tuple(reader.tokens[request.request_id]) == expected[request.request_id]
    assert engine.counters.kv_usage == 0.0


def test_only_the_request_with_non_finite_logits_gets_the_error_non_finite_logits(engine: Engine) -> None:
    requests = make_requests()
    expected = {completion.request_id: completion.token_ids for completion in generate(engine, requests)}
    with torch.inference_mode():
        engine.model.weights.embedding[99] = math.nan
    engine.scheduler.pool.forget_prefixes()
    bad = replace(requests[0], request_id="bad", prompt_token_ids=(10, 99, 12))

    with closing(Reader(engine)) as reader:
        for request in [*requests[:2], bad, requests[2]]:
            reader.worker.submit(request)
        reader.wait_for("bad", *expected)

    failure = reader.ends.pop("bad")
    assert isinstance(failure, GenerationFailed)
    assert (failure.status, failure.code) == (500, "non_finite_logits")
    assert "check the model's files" in failure.message
    assert {name: tuple(reader.tokens[name]) for name in expected} == expected
    assert "bad" not in reader.tokens or reader.tokens["bad"] == []
