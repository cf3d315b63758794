"""A request whose logits are not finite fails alone, at the same token with every drafter and in every decoding mode.

In these tests the embedding of one token is NaN, so all logits after that token are NaN.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.combined import CombinedDrafter
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, FinishReason, Request, SamplingParams
from tests.engine.drafters import OracleDrafter, random_medusa
from tests.engine.graph_decoding.captured import CapturingDevice, use_cuda_kernels
from tests.engine.graph_decoding.late_device import LateDevice, install
from tests.engine.test_equality import SAMPLINGS, Sampling, make_requests
from tests.kernels.cuda.device import HAS_GPU
from tests.tiny_model import make_tiny_model

DRAFTERS = ("none", "ngram", "suffix", "medusa", "medusa+suffix", "oracle")


def damaged(model_dir: Path, token: int) -> Model:
    model = load_model(model_dir, device="cpu")
    with torch.inference_mode():
        model.weights.embedding[token] = math.nan
    return model


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4)


def requests_of(model: Model, sampling: Sampling) -> list[Request]:
    made = make_requests(model, {**sampling, "ignore_eos": True}, count=6, max_tokens=24)
    return [replace(request, sampling=replace(request.sampling, num_logprobs=None)) for request in made]


def token_of_one_answer(requests: list[Request], healthy: list[Completion]) -> tuple[int, int, int]:
    """Returns (request, position in its answer, token) of a token in the middle of one answer and in no other text."""
    for index, completion in enumerate(healthy):
        others = [
            {*r.prompt_token_ids, *c.token_ids} for r, c in zip(requests, healthy, strict=True) if c != completion
        ]
        for position in range(4, 20):
            token = completion.token_ids[position]
            before = {*requests[index].prompt_token_ids, *completion.token_ids[:position]}
            if token not in before and not any(token in other for other in others):
                return index, position, token
    raise AssertionError("every token of every answer also occurs in another text")


def drafter_of(name: str, model: Model, healthy: list[Completion]) -> Drafter:
    if name == "oracle":  # also proposes the tokens after the failing token, and wrong siblings of each token
        known = {c.request_id: c.token_ids for c in healthy}
        return OracleDrafter(known, max_depth=6, error=0.2, tree=True, vocab_size=model.config.vocab_size)
    made: dict[str, Drafter] = {
        "none": NoDrafter(),
        "ngram": NgramDrafter(),
        "suffix": SuffixDrafter(past_tokens=2000),
        "medusa": random_medusa(model),
        "medusa+suffix": CombinedDrafter([random_medusa(model), SuffixDrafter(past_tokens=100)]),
    }
    return made[name]


def check_that_one_request_fails(model_dir: Path, name: str, sampling: Sampling, config: EngineConfig) -> None:
    sound = load_model(model_dir, device="cpu")
    requests = requests_of(sound, sampling)
    healthy = generate(Engine(sound, NoDrafter(), EngineConfig()), requests)
    failing, position, token = token_of_one_answer(requests, healthy)
    model = damaged(model_dir, token)
    engine = Engine(model, drafter_of(name, model, healthy), config)

    for index, (found, expected) in enumerate(zip(generate(engine, requests), healthy, strict=True)):
        if index == failing:
            assert found.finish_reason is FinishReason.FAILED
            assert found.token_ids == expected.token_ids[: position + 1]  # up to the token with the damaged embedding
        else:
            assert (found.token_ids, found.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert engine.scheduler.pool.num_available == engine.cache.num_slots


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("name", DRAFTERS)
def test_only_the_request_with_non_finite_logits_fails(model_dir: Path, name: str, sampling: Sampling) -> None:
    check_that_one_request_fails(model_dir, name, sampling, EngineConfig(draft_budget=15))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("name", ["none", "ngram", "medusa"])
def test_only_the_request_with_non_finite_logits_fails_in_graph_decoding(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str, sampling: Sampling
) -> None:
    install(monkeypatch, LateDevice())
    check_that_one_request_fails(model_dir, name, sampling, EngineConfig(draft_budget=7, graph_decoding="on"))


@pytest.mark.skipif(HAS_GPU, reason="a GPU captures real graphs")
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # Triton's interpreter computes maxima with numpy
def test_only_the_request_with_non_finite_logits_fails_in_captured_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sampling = make_tiny_model(tmp_path), SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
    requests = [
        Request("greedy", (3, 4, 5), sampling),
        Request("sampled", (9, 8, 7), replace(sampling, temperature=0.8, top_p=0.9, seed=4)),
    ]
    healthy = generate(Engine(load_model(folder, device="cpu"), NoDrafter(), EngineConfig()), requests)
    token = healthy[1].token_ids[2]
    assert token not in (*healthy[0].token_ids, *healthy[1].token_ids[:2], 3, 4, 5, 9, 8, 7)
    install(monkeypatch, CapturingDevice())
    use_cuda_kernels(monkeypatch)
    engine = Engine(damaged(folder, token), NoDrafter(), EngineConfig(graph_decoding="on", max_batch_size=2))

    greedy, sampled = generate(engine, requests)

    assert greedy.token_ids == healthy[0].token_ids
    assert (sampled.token_ids, sampled.finish_reason) == (healthy[1].token_ids[:3], FinishReason.FAILED)


@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.3}, {"logit_bias": ((5, 2.0),)}, {"num_logprobs": 3}])
def test_a_prompt_that_gives_non_finite_logits_fails_before_the_first_token(
    model_dir: Path, options: dict[str, object]
) -> None:
    engine = Engine(damaged(model_dir, 9), NoDrafter(), EngineConfig())
    sampling = SamplingParams(max_tokens=4, temperature=0.7, **options)  # type: ignore[arg-type]
    engine.add(Request("bad", (1, 9, 3), sampling))

    (output,) = engine.step()

    assert (output.token_ids, output.finish_reason) == ((), FinishReason.FAILED)
    assert output.failure is not None
    assert output.failure.code == "non_finite_logits"
    assert not engine.has_work


def test_later_requests_do_not_share_the_keys_and_values_of_a_failed_request(model_dir: Path) -> None:
    engine = Engine(damaged(model_dir, 9), NoDrafter(), EngineConfig())
    sampling = SamplingParams(max_tokens=2, temperature=0.0)
    prefix = tuple(range(100, 148))
    (failed,) = generate(engine, [Request("bad", (*prefix, 9), sampling)])
    (other,) = generate(engine, [Request("good", (*prefix, 50), sampling)])

    assert failed.finish_reason is FinishReason.FAILED
    assert len(other.token_ids) == 2
    assert other.speculation.num_cached_tokens == 0
