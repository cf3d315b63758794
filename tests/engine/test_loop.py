"""The engine's housekeeping: ends, limits, cancellation, and that no slot is ever lost."""

from pathlib import Path

import pytest

from engine.budget import Calibration, CostModel, DraftBudget
from engine.config import EngineConfig
from engine.draft import chain
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.errors import RequestTooLong
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.model import Decoder
from engine.request import FinishReason, Request, SamplingParams
from tests.engine.drafters import OracleDrafter
from tests.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return load_model(make_tiny_model(tmp_path_factory.mktemp("model"), "llama"))


def make_request(name: str, prompt: tuple[int, ...] = (5, 6, 7), **sampling: object) -> Request:
    values = {"max_tokens": 12, "temperature": 0.0, "ignore_eos": True} | sampling
    return Request(name, prompt, SamplingParams(**values))  # type: ignore[arg-type]


def free_slots(engine: Engine) -> int:
    return len(engine.cache._free_slots)


def test_an_answer_ends_at_a_stop_token_even_inside_a_draft(model: Decoder) -> None:
    (plain,) = generate(Engine(model, NoDrafter(), EngineConfig()), [make_request("a")])
    stop = plain.token_ids[5]
    first = plain.token_ids.index(stop)
    oracle = OracleDrafter({"a": plain.token_ids}, max_depth=8, error=0.0, tree=False, vocab_size=300)
    engine = Engine(model, oracle, EngineConfig(draft_budget=8))

    (ours,) = generate(engine, [make_request("a", stop_token_ids=frozenset([stop]))])

    assert ours.token_ids == plain.token_ids[: first + 1]
    assert ours.finish_reason is FinishReason.STOP
    assert free_slots(engine) == engine.cache.keys[0].shape[0]


def test_a_finished_or_cancelled_request_gives_back_all_it_held(model: Decoder) -> None:
    engine = Engine(model, NgramDrafter(), EngineConfig(max_batch_size=3, draft_budget=6))
    for index in range(7):
        engine.add(make_request(f"r{index}", (1, 2, 3, 1, 2, 3, 1, 2)))
    for _ in range(3):
        engine.step()
    engine.cancel("r1")
    engine.cancel("r5")  # still waiting
    engine.cancel("nobody")

    reasons = {}
    while engine.has_work:
        for output in engine.step():
            if output.finish_reason:
                reasons[output.request_id] = output.finish_reason

    cancelled = {name for name, reason in reasons.items() if reason is FinishReason.CANCELLED}
    assert cancelled == {"r1", "r5"}
    assert len(reasons) == 7
    assert free_slots(engine) == engine.cache.keys[0].shape[0]
    assert engine.num_running == engine.num_waiting == 0


def test_requests_beyond_the_cache_wait_for_room(model: Decoder) -> None:
    engine_bytes = 40 * 2 * 2 * 2 * 16 * 4  # 40 slots of two layers, two KV heads of 16, float32
    engine = Engine(model, NoDrafter(), EngineConfig(max_batch_size=8, kv_cache_bytes=engine_bytes))
    completions = generate(engine, [make_request(f"r{index}") for index in range(6)])
    assert [len(c.token_ids) for c in completions] == [12] * 6
    assert free_slots(engine) == 40


def test_a_request_that_can_never_fit_is_refused_with_both_sides(model: Decoder) -> None:
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


def test_one_token_answers_need_no_draft(model: Decoder) -> None:
    engine = Engine(model, NgramDrafter(), EngineConfig(draft_budget=5))
    (completion,) = generate(engine, [make_request("a", (1, 2, 1, 2, 1, 2), max_tokens=1)])
    assert len(completion.token_ids) == 1
    assert completion.speculation.num_spec_steps == 0
    assert completion.speculation.mean_acceptance_length == 1.0


def test_a_tiny_model_answers_from_a_folder_of_another_dtype(tmp_path: Path) -> None:
    model = load_model(make_tiny_model(tmp_path, "qwen2"), dtype="bfloat16")
    assert len(generate(Engine(model, NoDrafter(), EngineConfig()), [make_request("a")])[0].token_ids) == 12


def test_nodes_are_admitted_only_while_they_pay() -> None:
    # Rows are free up to 8, then each costs as much as a whole pass.
    cost = CostModel((1, 8, 9, 64), (1.0, 1.0, 2.0, 57.0))
    budget = DraftBudget(cost, 20)
    good, bad = chain([1] * 10, [0.95**d for d in range(1, 11)]), chain([1] * 10, [0.01] * 10)

    assert len(budget.admit([good], 0)[0]) == 7
    assert [len(draft) for draft in budget.admit([good, bad], 0)] == [6, 0]
    assert [len(draft) for draft in budget.admit([good] * 8, 0)] == [0] * 8
    assert len(budget.admit([good], other_rows=7)[0]) == 0


def test_a_drafter_that_boasts_is_believed_less_and_less() -> None:
    calibration = Calibration()
    before = calibration.corrected(0.85)
    for _ in range(200):
        calibration.record(chain([1], [0.85]), [])
    assert before == pytest.approx(0.85)
    assert calibration.corrected(0.85) < 0.15


def test_a_fixed_budget_is_kept() -> None:
    budget = DraftBudget(None, 3)
    assert budget.largest == 3
    draft = chain([1, 2, 3], [0.1, 0.1, 0.1])
    assert budget.admit([draft], 0) == [draft]
