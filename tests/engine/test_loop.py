"""The engine ends answers, applies limits, cancels requests, and frees the cache slots of all ended requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.cost import ROW_COUNTS
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.errors import RequestTooLong
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.models.base import Hidden, Model, Rows
from engine.request import FinishReason, Request, SamplingParams, SpeculationStats
from tests.engine.drafters import OracleDrafter
from tests.engine.tiny_speculators import make_mtp
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"))


def make_request(name: str, prompt: tuple[int, ...] = (5, 6, 7), **sampling: object) -> Request:
    values = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True} | sampling
    return Request(name, prompt, SamplingParams(**values))  # type: ignore[arg-type]


def free_slots(engine: Engine) -> int:
    return engine.scheduler.pool.num_available


def test_an_answer_ends_at_a_stop_token_even_inside_a_draft(model: Model) -> None:
    (plain,) = generate(Engine(model, NoDrafter(), EngineConfig()), [make_request("a")])
    stop = plain.token_ids[5]
    first = plain.token_ids.index(stop)
    oracle = OracleDrafter({"a": plain.token_ids}, max_depth=8, error=0.0, tree=False, vocab_size=300)
    engine = Engine(model, oracle, EngineConfig(draft_budget=8))

    (drafted,) = generate(engine, [make_request("a", stop_token_ids=frozenset([stop]))])

    assert drafted.token_ids == plain.token_ids[: first + 1]
    assert drafted.finish_reason is FinishReason.STOP
    assert free_slots(engine) == engine.cache.num_slots


def test_a_finished_or_cancelled_request_frees_all_its_slots(model: Model) -> None:
    engine = Engine(model, NgramDrafter(), EngineConfig(max_batch_size=3, draft_budget=6))
    for index in range(7):
        engine.add(make_request(f"r{index}", (1, 2, 3, 1, 2, 3, 1, 2)))
    for _ in range(3):
        engine.step()
    engine.cancel("r1")
    engine.cancel("r5")  # not admitted yet
    engine.cancel("nobody")

    reasons = {}
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason:
                reasons[output.request_id] = output.finish_reason

    cancelled = {name for name, reason in reasons.items() if reason is FinishReason.CANCELLED}
    assert cancelled == {"r1", "r5"}
    assert len(reasons) == 7
    assert free_slots(engine) == engine.cache.num_slots
    assert engine.num_running == engine.num_waiting == 0


def test_requests_that_do_not_fit_into_the_cache_wait(model: Model) -> None:
    cache_bytes = 40 * 2 * 2 * 2 * 16 * 4  # 40 slots: two layers, keys and values, two KV heads of 16 float32 numbers
    engine = Engine(model, NoDrafter(), EngineConfig(max_batch_size=8, kv_cache_bytes=cache_bytes))
    completions = generate(engine, [make_request(f"r{index}") for index in range(6)])
    assert [len(c.token_ids) for c in completions] == [12] * 6
    assert free_slots(engine) == 40


def test_a_request_that_is_too_long_or_invalid_is_refused_with_the_reason(model: Model) -> None:
    engine = Engine(model, NoDrafter(), EngineConfig(max_seq_len=32))
    with pytest.raises(RequestTooLong, match=r"may have 32 tokens, got 30 \+ 12"):
        engine.add(make_request("a", tuple(range(30))))
    with pytest.raises(ValueError, match="must not be empty"):
        engine.add(make_request("a", ()))
    with pytest.raises(ValueError, match="must be in 0"):
        engine.add(make_request("a", (10**6,)))
    engine.add(make_request("a"))
    with pytest.raises(ValueError, match="request_id 'a' is in use"):
        engine.add(make_request("a"))


def test_an_answer_of_one_token_has_no_verify_pass(model: Model) -> None:
    engine = Engine(model, NgramDrafter(), EngineConfig(draft_budget=5))
    (completion,) = generate(engine, [make_request("a", (1, 2, 1, 2, 1, 2), max_tokens=1)])
    assert len(completion.token_ids) == 1
    assert completion.speculation.num_spec_steps == 0
    assert completion.speculation.mean_acceptance_length == 1.0


def test_a_float32_checkpoint_can_be_served_in_bfloat16(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path, "qwen2"), dtype="bfloat16")
    assert len(generate(Engine(model, NoDrafter(), EngineConfig()), [make_request("a")])[0].token_ids) == 12


def test_an_equal_prefix_of_later_requests_is_read_from_the_cache(model: Model) -> None:
    engine = Engine(model, NoDrafter(), EngineConfig())
    prompt = tuple(range(50))
    (first,) = generate(engine, [make_request("a", prompt)])
    (second,) = generate(engine, [make_request("b", (*prompt, 60, 61))])
    (third,) = generate(engine, [make_request("c", prompt)])

    assert first.speculation.num_cached_tokens == 0
    assert second.speculation.num_cached_tokens == third.speculation.num_cached_tokens == 48  # 3 blocks of 16
    assert first.token_ids == third.token_ids
    assert (
        second.token_ids
        == generate(Engine(model, NoDrafter(), EngineConfig()), [make_request("b", (*prompt, 60, 61))])[0].token_ids
    )
    assert engine.counters.prefix_hits == 96
    assert engine.counters.prefix_queries == 152  # prompt tokens: 50 + 52 + 50


def test_swapping_the_drafter_does_not_change_running_answers(model: Model) -> None:
    requests = [make_request(f"r{index}", (1, 2, 3, 1, 2, 3, index), max_tokens=30) for index in range(4)]
    plain = [c.token_ids for c in generate(Engine(model, NoDrafter(), EngineConfig()), requests)]
    engine = Engine(model, NgramDrafter(), EngineConfig(draft_budget=6))
    oracle = OracleDrafter(
        {f"r{index}": tokens for index, tokens in enumerate(plain)}, max_depth=5, error=0.2, tree=True, vocab_size=250
    )
    for request in requests:
        engine.add(request)
    answers: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for step in range(100):
        if step in (4, 8):
            engine.swap_drafter(oracle if step == 4 else NoDrafter())
        for output in engine.step():
            answers[output.request_id] += output.token_ids
        if not engine.has_work:
            break
    assert [tuple(tokens) for tokens in answers.values()] == plain


@pytest.mark.parametrize("is_running", [False, True])
def test_after_a_swap_prompts_are_read_again_for_a_drafter_with_keys_and_values(model: Model, is_running: bool) -> None:
    prompt = tuple(range(50))
    before, after = make_request("before", prompt, max_tokens=40), make_request("after", (*prompt, 7), max_tokens=20)
    (expected,) = generate(Engine(model, make_mtp_drafter(model), EngineConfig(draft_budget=4)), [after])
    engine = Engine(model, NoDrafter(), EngineConfig(draft_budget=4))
    engine.add(before)
    for _ in range(5 if is_running else 50):
        engine.step()
    assert engine.has_work == is_running

    engine.swap_drafter(make_mtp_drafter(model))
    completions = dict(answer_of(engine, after))

    assert completions["after"] == (expected.token_ids, expected.speculation)
    assert engine.scheduler.pool.num_available == engine.cache.num_slots


def make_mtp_drafter(model: Model) -> MtpDrafter:
    return MtpDrafter(DensePrediction(make_mtp(), model), model, max_depth=4)


def answer_of(engine: Engine, request: Request) -> Iterator[tuple[str, tuple[tuple[int, ...], SpeculationStats]]]:
    """Adds the request to those that the engine already runs, and yields its id, tokens and statistics at its end."""
    tokens: list[int] = []
    engine.add(request)
    while engine.has_work:
        for output in engine.step():
            if output.request_id == request.request_id:
                tokens += output.token_ids
                if output.speculation is not None:
                    yield request.request_id, (tuple(tokens), output.speculation)


def test_the_cost_of_passes_is_measured_with_all_row_counts_in_a_full_cache(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(model, NoDrafter(), EngineConfig())
    pool = engine.scheduler.pool
    pool.allocate(pool.num_available - 2)
    row_counts: list[int] = []
    forward = model.forward

    def record(rows: Rows, cache: KVCache, tap_layers: tuple[int, ...] = ()) -> Hidden:
        row_counts.append(rows.token_ids.shape[0])
        return forward(rows, cache, tap_layers)

    monkeypatch.setattr(model, "forward", record)
    engine.swap_drafter(NgramDrafter())

    assert sorted(set(row_counts)) == sorted(ROW_COUNTS)
    assert pool.num_available == 2
