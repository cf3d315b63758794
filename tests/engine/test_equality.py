"""The guarantee of docs/design.md: no drafter, batch, tree or chunk size changes an answer, at any temperature."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.drafters.base import Drafter, Pass
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, Request, SamplingParams
from tests.engine.drafters import OracleDrafter, every_drafter
from tests.tiny_model import make_tiny_model

Sampling = dict[str, float | int]
SAMPLINGS: dict[str, Sampling] = {
    "greedy": {"temperature": 0.0},
    "T=0.8": {"temperature": 0.8, "seed": 17},
    "top-p": {"temperature": 0.8, "top_p": 0.9, "seed": 2**63 + 5},
    "all filters": {"temperature": 1.3, "top_k": 12, "top_p": 0.95, "min_p": 0.01, "seed": 3},
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), "llama")
    return load_model(folder, dtype=request.param)


@pytest.fixture(scope="module")
def draft_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("draft"), "llama", seed=1, num_layers=1))


def make_requests(model: Model, sampling: Sampling, *, count: int = 10, max_tokens: int = 40) -> list[Request]:
    """Makes prompts of 1 to 60 tokens, half of which repeat themselves, so that n-gram drafters find matches."""
    generator = random.Random(0)
    requests = []
    for index in range(count):
        prompt = [generator.randrange(model.config.vocab_size) for _ in range(generator.randint(1, 30))]
        prompt = prompt * 2 if index % 2 else prompt
        params = SamplingParams(max_tokens=max_tokens, num_logprobs=2, **sampling)  # type: ignore[arg-type]
        requests.append(Request(f"r{index}", tuple(prompt), params, memory="test"))
    return requests


def complete(model: Model, drafter: Drafter, requests: list[Request], **config: int) -> list[Completion]:
    return generate(Engine(model, drafter, EngineConfig(**config)), requests)  # type: ignore[arg-type]


def answers_only(completions: list[Completion]) -> list[tuple[object, ...]]:
    """Returns what must not depend on drafts and batches: token ids, exact log probabilities and finish reasons."""
    return [(c.request_id, c.token_ids, c.logprobs, c.finish_reason) for c in completions]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize(("batch_size", "count"), [(1, 4), (5, 8)])
def test_answers_are_equal_with_every_drafter(
    model: Model, draft_model: Model, sampling: Sampling, batch_size: int, count: int
) -> None:
    requests = make_requests(model, sampling, count=count, max_tokens=24)
    plain = complete(model, NoDrafter(), requests, max_batch_size=batch_size)
    tokens_of = {c.request_id: c.token_ids for c in plain}
    for drafter in every_drafter(model, draft_model, tokens_of):
        drafted = complete(model, drafter, requests, max_batch_size=batch_size, draft_budget=15)
        assert answers_only(drafted) == answers_only(plain), drafter.name


def test_all_tokens_of_a_drafter_without_errors_are_accepted_and_counted(model: Model) -> None:
    requests = make_requests(model, {"temperature": 0.8, "seed": 1, "ignore_eos": True}, max_tokens=41)
    plain = complete(model, NoDrafter(), requests)
    tokens_of = {c.request_id: c.token_ids for c in plain}
    oracle = OracleDrafter(tokens_of, max_depth=4, error=0.0, tree=True, vocab_size=model.config.vocab_size)

    drafted = complete(model, oracle, requests, draft_budget=15)

    assert answers_only(drafted) == answers_only(plain)
    for completion in drafted:
        # One token comes from prefill, and 40 from 8 passes of five tokens.
        assert completion.speculation.num_spec_steps == 8
        assert completion.speculation.mean_acceptance_length == 5.0
        assert completion.speculation.acceptance_histogram == [0, 0, 0, 0, 8]
        assert completion.speculation.num_spec_tokens == 4


def test_batch_size_and_prefill_chunk_size_do_not_change_an_answer(model: Model) -> None:
    requests = make_requests(model, SAMPLINGS["T=0.8"])
    plain = answers_only(complete(model, NoDrafter(), requests, max_batch_size=16))
    for max_batch_size, prefill_chunk in ((1, 256), (3, 5), (16, 1), (5, 16)):
        drafted = complete(model, NgramDrafter(), requests, max_batch_size=max_batch_size, prefill_chunk=prefill_chunk)
        assert answers_only(drafted) == plain, (max_batch_size, prefill_chunk)
    in_reverse = complete(model, NoDrafter(), requests[::-1], max_batch_size=4)
    assert answers_only(in_reverse)[::-1] == plain


def test_an_answer_does_not_depend_on_other_requests_in_the_batch(model: Model) -> None:
    requests = make_requests(model, SAMPLINGS["greedy"])
    batched = answers_only(complete(model, NgramDrafter(), requests))
    single = [answers_only(complete(model, NoDrafter(), [request]))[0] for request in requests]
    assert single == batched


@pytest.mark.parametrize("sampling", ["greedy", "top-p"])
def test_preemption_and_shared_prefixes_do_not_change_an_answer(model: Model, sampling: str) -> None:
    common = tuple(random.Random(5).randrange(model.config.vocab_size) for _ in range(37))
    requests = [
        replace(request, prompt_token_ids=common[: 12 * (index % 4)] + request.prompt_token_ids)
        for index, request in enumerate(make_requests(model, SAMPLINGS[sampling]))
    ]
    plain = [answers_only(complete(model, NoDrafter(), [request]))[0] for request in requests]
    tokens_of = {request_id: token_ids for request_id, token_ids, _, _ in plain}
    oracle = OracleDrafter(tokens_of, max_depth=5, error=0.2, tree=True, vocab_size=model.config.vocab_size)  # type: ignore[arg-type]
    cache_bytes = 180 * KVCache.slot_bytes(model.config, model.dtype)  # too few slots for 8 sequences
    engine = Engine(model, oracle, EngineConfig(max_batch_size=8, kv_cache_bytes=cache_bytes, draft_budget=9))

    drafted = [answers_only(generate(engine, requests)) for _ in range(2)]

    assert drafted == [plain, plain]
    assert engine.counters.num_preemptions > 0
    assert engine.counters.prefix_hits > 0


def test_training_and_serving_compute_bit_identical_hidden_states(model: Model) -> None:
    requests = make_requests(model, SAMPLINGS["greedy"], count=1)
    observed: list[torch.Tensor] = []

    class ObservingDrafter(NoDrafter):
        max_depth = 1

        def observe(self, done: Pass) -> None:
            observed.extend(done.hidden[kept.rows[-1]].clone() for kept in done.kept)

    (completion,) = complete(model, ObservingDrafter(), requests, draft_budget=1)

    tokens = (*requests[0].prompt_token_ids, *completion.token_ids)
    states = model.hidden_states(torch.tensor(tokens)).final
    first = len(requests[0].prompt_token_ids) - 1
    assert len(observed) == len(completion.token_ids) - 1
    for offset, hidden in enumerate(observed):
        assert torch.equal(hidden, states[first + offset]), offset


def test_answers_are_equal_without_compiled_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("linear", "norm", "swiglu", "rope", "attention"):
        monkeypatch.setattr(f"kernels.{module}.library", lambda: None)
    model = load_model(make_tiny_model(tmp_path, "qwen3"), dtype="bfloat16")
    requests = make_requests(model, SAMPLINGS["top-p"], count=5, max_tokens=20)
    plain = answers_only(complete(model, NoDrafter(), requests, max_batch_size=1))
    tokens_of = {request_id: token_ids for request_id, token_ids, _, _ in plain}
    oracle = OracleDrafter(tokens_of, max_depth=5, error=0.2, tree=True, vocab_size=model.config.vocab_size)  # type: ignore[arg-type]
    assert answers_only(complete(model, oracle, requests, max_batch_size=4, draft_budget=12)) == plain
