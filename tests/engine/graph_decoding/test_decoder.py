"""Graph decoding returns the same tokens as synchronous steps, which are the engine's steps without graphs.

The tokens are the same for all drafts, and when requests finish, are cancelled or are preempted.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import FinishReason, Request, SamplingParams
from tests.engine.drafters import BrokenDrafter, OracleDrafter, random_medusa
from tests.engine.eagle3_reference import make_config, make_module
from tests.engine.graph_decoding.late_device import LateDevice, install
from tests.engine.test_equality import SAMPLINGS, Sampling, answers_only, make_requests
from tests.engine.tiny_speculators import make_block, make_mtp
from tests.tiny_model import make_tiny_model

ON_DEVICE: dict[str, Callable[[Model], Drafter]] = {
    "medusa": random_medusa,
    "eagle3": lambda model: Eagle3Drafter(make_module(make_config()), model),
    "mtp": lambda model: MtpDrafter(DensePrediction(make_mtp(), model), model, max_depth=4),
    "block": lambda model: BlockDrafter(make_block(), model),
    "dspark": lambda model: BlockDrafter(make_block(speculators_model_type="dspark", markov_rank=8), model),
}
DRAFTERS: dict[str, Callable[[Model], Drafter]] = {
    "none": lambda _: NoDrafter(),
    **ON_DEVICE,
    "ngram": lambda _: NgramDrafter(),
    "broken": lambda _: BrokenDrafter(),
}
# With these drafters, the host launches a graph step before it has read the tokens of the previous one.
LAUNCHED_AHEAD = ["none", *ON_DEVICE]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4), device="cpu")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice()
    install(monkeypatch, device)
    return device


def requests_of(model: Model, sampling: Sampling, *, count: int = 5, max_tokens: int = 16) -> list[Request]:
    """Makes requests without log probabilities, which graph decoding does not support."""
    requests = make_requests(model, sampling, count=count, max_tokens=max_tokens)
    return [replace(request, sampling=replace(request.sampling, num_logprobs=None)) for request in requests]


def graph_engine(model: Model, drafter: Drafter, **config: int) -> Engine:
    return Engine(model, drafter, EngineConfig(graph_decoding="on", **config))  # type: ignore[arg-type]


def plain_answers(model: Model, requests: list[Request]) -> list[tuple[object, ...]]:
    engine = Engine(model, NoDrafter(), EngineConfig())
    assert not engine.uses_graph_decoding
    return answers_only(generate(engine, requests))


def is_empty(engine: Engine) -> bool:
    """Whether the engine has no requests and all cache slots are free."""
    return engine.scheduler.pool.num_available == engine.cache.num_slots and not engine.has_work


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("kind", DRAFTERS)
def test_graph_decoding_returns_the_tokens_of_synchronous_steps(
    model: Model, device: LateDevice, kind: str, sampling: Sampling
) -> None:
    requests = requests_of(model, sampling)
    plain = plain_answers(model, requests)
    engine = graph_engine(model, DRAFTERS[kind](model), max_batch_size=3, draft_budget=7)
    assert answers_only(generate(engine, requests)) == plain
    assert is_empty(engine)
    assert device.most_queued == (2 if kind in LAUNCHED_AHEAD else 1)


@pytest.mark.parametrize("kind", LAUNCHED_AHEAD)
def test_answers_that_outgrow_the_graphs_for_short_contexts_keep_their_tokens(
    model: Model, device: LateDevice, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """`device` checks that no row has more keys than its graph allows."""
    monkeypatch.setattr("engine.graph_decoding.decoder.MAX_DEPTH", 8)  # enough for these drafters
    monkeypatch.setattr("engine.graph_decoding.runner.SHORT_CONTEXT", 40)
    requests = requests_of(model, SAMPLINGS["greedy"], max_tokens=40)
    engine = graph_engine(model, DRAFTERS[kind](model), max_batch_size=3, draft_budget=7)

    assert answers_only(generate(engine, requests)) == plain_answers(model, requests)

    assert engine._graph_decoder is not None
    assert len({max_keys for _, _, max_keys in engine._graph_decoder.runner._buffers}) == 2


@pytest.mark.parametrize(("batch_size", "budget"), [(1, 1), (1, 15), (8, 2), (2, 0)])
def test_tokens_do_not_depend_on_batch_size_and_draft_budget(
    model: Model, device: LateDevice, batch_size: int, budget: int
) -> None:
    requests = requests_of(model, SAMPLINGS["T=0.8"])
    engine = graph_engine(model, random_medusa(model), max_batch_size=batch_size, draft_budget=budget)
    assert answers_only(generate(engine, requests)) == plain_answers(model, requests)


def test_drafts_made_on_the_device_are_accepted_and_counted(model: Model, device: LateDevice) -> None:
    requests = requests_of(model, SAMPLINGS["greedy"], max_tokens=40)
    synchronous = generate(Engine(model, random_medusa(model), EngineConfig(draft_budget=7)), requests)
    actual = generate(graph_engine(model, random_medusa(model), draft_budget=7), requests)
    assert sum(c.speculation.num_accepted_draft_tokens for c in actual) > 0
    for completion, expected in zip(actual, synchronous, strict=True):
        assert completion.speculation.acceptance_histogram == expected.speculation.acceptance_histogram
        assert completion.speculation.num_cached_tokens == expected.speculation.num_cached_tokens


def test_an_adaptive_draft_budget_does_not_change_tokens(model: Model, device: LateDevice) -> None:
    requests = requests_of(model, SAMPLINGS["T=0.8"], max_tokens=40)
    plain = plain_answers(model, requests)
    answers = {str(request_id): tokens for request_id, tokens, _, _ in plain}
    oracle = OracleDrafter(answers, max_depth=5, error=0.1, tree=True, vocab_size=250)  # type: ignore[arg-type]
    for drafter in (random_medusa(model), oracle):
        engine = graph_engine(model, drafter, max_batch_size=3)
        assert answers_only(generate(engine, requests)) == plain


def test_a_stop_token_inside_a_draft_ends_the_answer_and_later_tokens_are_dropped(
    model: Model, device: LateDevice
) -> None:
    (request,) = requests_of(model, {"temperature": 0.0, "ignore_eos": True}, count=1, max_tokens=30)
    ((_, tokens, _, _),) = plain_answers(model, [request])
    assert isinstance(tokens, tuple)
    for stop in tokens[::6]:
        sampling = replace(request.sampling, stop_token_ids=frozenset([stop]))
        engine = graph_engine(model, random_medusa(model), draft_budget=7)
        (actual,) = generate(engine, [replace(request, sampling=sampling)])
        assert actual.token_ids == tokens[: tokens.index(stop) + 1]
        assert actual.finish_reason is FinishReason.STOP
        assert is_empty(engine)


def test_requests_that_need_synchronous_steps_do_not_change_other_answers(model: Model, device: LateDevice) -> None:
    requests = requests_of(model, SAMPLINGS["T=0.8"], count=7)
    for index, change in ((2, {"num_logprobs": 2}), (4, {"presence_penalty": 0.7}), (6, {"min_tokens": 9})):
        sampling = replace(requests[index].sampling, **change)
        requests[index] = replace(requests[index], sampling=sampling)
    plain = plain_answers(model, requests)
    for kind in ("none", "medusa", "eagle3", "ngram"):
        engine = graph_engine(model, DRAFTERS[kind](model), max_batch_size=3, draft_budget=7)
        assert answers_only(generate(engine, requests)) == plain
        assert is_empty(engine)


@pytest.mark.parametrize("kind", ["none", "medusa", "eagle3", "block", "ngram"])
def test_preemption_and_shared_prefixes_do_not_change_an_answer(model: Model, device: LateDevice, kind: str) -> None:
    common = tuple(random.Random(5).randrange(model.config.vocab_size) for _ in range(37))
    requests = [
        Request(request.request_id, common[: 12 * (index % 4)] + request.prompt_token_ids, request.sampling)
        for index, request in enumerate(requests_of(model, SAMPLINGS["greedy"], count=7, max_tokens=24))
    ]
    plain = plain_answers(model, requests)
    drafter = DRAFTERS[kind](model)
    cache_bytes = 130 * (KVCache.slot_bytes(model.config, model.dtype) + drafter.slot_bytes)  # too few slots for all
    engine = graph_engine(model, drafter, max_batch_size=8, kv_cache_bytes=cache_bytes, draft_budget=5)
    assert [answers_only(generate(engine, requests)) for _ in range(2)] == [plain, plain]
    assert engine.counters.num_preemptions > 0
    assert engine.counters.prefix_hits > 0
    assert is_empty(engine)


def test_sharing_cache_blocks_between_equal_concurrent_answers_does_not_change_them(
    model: Model, device: LateDevice
) -> None:
    (request,) = requests_of(model, SAMPLINGS["T=0.8"], count=1, max_tokens=70)
    requests = [replace(request, request_id=name) for name in ("a", "b", "c")]
    plain = plain_answers(model, requests)
    for kind in LAUNCHED_AHEAD:
        engine = graph_engine(model, DRAFTERS[kind](model), max_batch_size=3, draft_budget=7)
        assert answers_only(generate(engine, requests)) == plain


def test_adding_or_cancelling_requests_during_a_step_does_not_change_other_answers(
    model: Model, device: LateDevice
) -> None:
    requests = requests_of(model, SAMPLINGS["T=0.8"], count=12, max_tokens=30)
    plain = {str(name): tokens for name, tokens, _, _ in plain_answers(model, requests)}
    engine = graph_engine(model, NoDrafter(), max_batch_size=4)
    expected = {name: list(tokens) for name, tokens in plain.items()}  # type: ignore[call-overload]
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    reasons: dict[str, FinishReason] = {}
    waiting = list(requests)
    for step in range(400):
        if waiting and step % 3 == 0:
            engine.add(waiting.pop(0))
        if step in (4, 11):
            engine.cancel(f"r{step // 4}")  # r1, then r2
        if step == 20:
            engine.swap_drafter(OracleDrafter(expected, max_depth=5, error=0.1, tree=True, vocab_size=250))
        if step == 30:
            engine.swap_drafter(random_medusa(model))  # its draft time is measured while requests decode
        for output in engine.step():
            answers[output.request_id] += output.token_ids
            if output.finish_reason:
                reasons[output.request_id] = output.finish_reason
        if not waiting and not engine.has_work:
            break
    cancelled = {name for name, reason in reasons.items() if reason is FinishReason.CANCELLED}
    assert len(reasons) == 12
    assert {"r1", "r2"} >= cancelled != set()  # one of them may have ended before it was cancelled
    for name, tokens in answers.items():
        assert tuple(tokens) == plain[name][: len(tokens)]  # type: ignore[index]
        assert name in cancelled or tuple(tokens) == plain[name]
    assert is_empty(engine)


def test_an_answer_can_end_at_the_last_position_of_the_model(tmp_path: Path, device: LateDevice) -> None:
    model = load_model(make_tiny_model(tmp_path, "llama", num_layers=4), device="cpu")
    length = model.max_positions
    sampling = SamplingParams(max_tokens=14, temperature=0.0, ignore_eos=True)
    request = Request("a", tuple(index % 250 for index in range(length - 14)), sampling)
    plain = plain_answers(model, [request])
    for kind in LAUNCHED_AHEAD:
        engine = graph_engine(model, DRAFTERS[kind](model), draft_budget=7)
        assert answers_only(generate(engine, [request])) == plain
        assert is_empty(engine)


def test_graph_steps_can_be_timed_between_requests(model: Model) -> None:
    engine = graph_engine(model, random_medusa(model), max_batch_size=4, draft_budget=7)
    times = engine.time_graph_step(3, 7, context=40, repeats=3)
    assert times.verify_seconds > 0.0
    assert times.draft_seconds > 0.0
    requests = requests_of(model, SAMPLINGS["greedy"])
    for _ in range(2):  # the measurement must not overwrite cached prefixes
        assert answers_only(generate(engine, requests)) == plain_answers(model, requests)
        engine.time_graph_step(2, 3, context=100, repeats=1)
    with pytest.raises(
        ValueError, match=r"expected 1\.\.4 sequences with 1\.\.\d+ tokens each, got 5 sequences with 40 tokens each"
    ):
        engine.time_graph_step(5, 7, context=40)
    with pytest.raises(ValueError, match="uses graph decoding"):
        Engine(model, NoDrafter(), EngineConfig()).time_graph_step(1, 0, context=1)


def test_only_graphs_for_few_sequences_have_trees_of_more_than_31_nodes(model: Model, device: LateDevice) -> None:
    requests = requests_of(model, SAMPLINGS["T=0.8"], count=4, max_tokens=10)
    plain = plain_answers(model, requests)
    large: set[tuple[int, int]] = set()  # (sequences, nodes per sequence) of graphs with more than 31 nodes
    for batch_size in (1, 4):
        engine = graph_engine(model, random_medusa(model), max_batch_size=batch_size)
        assert answers_only(generate(engine, requests)) == plain
        assert engine._graph_decoder is not None
        large |= {(B, N) for B, N, _ in engine._graph_decoder.runner._buffers if N > 31}

    assert (1, 127) in large
    assert all(B * (1 + N) <= 128 for B, N in large)
