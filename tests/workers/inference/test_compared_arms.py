"""Evaluations that compare the speculator with further drafters: the arms, their figures and the pairs."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, read_config
from engine.drafters.none import NoDrafter
from engine.load import load_model
from engine.loop import Engine
from engine.request import Request, StepOutput
from engine.tokenizer import Tokenizer
from tests.workers.inference.test_evaluation import AnswerFactory, interrupted, make_spec, prepared
from tests.workers.support import Recorder, chat_rows
from workers.contracts import ComparedArm, EvaluationSpec, read_spec, write_spec
from workers.inference import distribution
from workers.inference.arms_report import ARM_DEFINITIONS, arms_report
from workers.inference.comparison import Arms, ArmTotals, Measurement, measure
from workers.inference.evaluation import engine_config, run_evaluation
from workers.inference.timing import AnswerTiming, TimedEngine
from workers.model_sizes import ModelSizes
from workers.planning import Wanted, kv_slot_bytes, plan

NGRAM, SUFFIX_AND_NGRAM = ComparedArm(name="ngram", drafter="ngram"), ComparedArm(name="spec_b", drafter="suffix+ngram")


@pytest.fixture(autouse=True)
def short_distribution_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the distribution test of each evaluation, because it does not involve further arms."""
    monkeypatch.setattr(distribution, "NUM_SAMPLES", 2)


@pytest.fixture(scope="module")
def factory(tiny_model: Path) -> AnswerFactory:
    return AnswerFactory(Tokenizer.load(tiny_model))


def compared_spec(folder: Path, model: Path, rows: list[dict[str, Any]], *arms: ComparedArm) -> EvaluationSpec:
    spec = make_spec(folder, model, rows)
    return replace(
        spec, drafter="suffix", speculator_name="spec_a", compare_with=arms, reports_arms=True, draft_budget=8
    )


def test_a_report_has_the_figures_of_each_arm_and_the_ratio_of_each_pair(tmp_path: Path, tiny_model: Path) -> None:
    spec = compared_spec(tmp_path, tiny_model, chat_rows(4, temperature=0.7), NGRAM, SUFFIX_AND_NGRAM)

    report = run_evaluation(spec, Recorder()).result

    assert [(arm["name"], arm["drafter"]) for arm in report["arms"]] == [
        ("none", "none"), ("suffix", "suffix"), ("spec_a", "suffix"), ("ngram", "ngram"), ("spec_b", "suffix+ngram")
    ]  # fmt: skip
    assert [arm["outputs_equal"] for arm in report["arms"]] == [4] * 5
    for arm in report["arms"]:
        assert [point["concurrency"] for point in arm["concurrencies"]] == [1, 4]
        for point in arm["concurrencies"]:
            latency = point["request_latency_seconds"]
            assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"]
            assert 0 < point["time_to_first_token_seconds"]["p50"] < latency["p50"]
            assert point["inter_token_latency_seconds"]["p50"] > 0
    assert len(report["pairs"]) == 2 * 10  # each of 10 pairs at both concurrencies
    (pair,) = (p for p in report["pairs"] if (p["concurrency"], p["arm"], p["baseline"]) == (1, "spec_a", "none"))
    assert pair["ratio"] == report["speedup"]
    assert pair["interval"][0] <= pair["interval"][1]
    assert report["definitions"].keys() >= ARM_DEFINITIONS.keys()


def test_further_arms_leave_the_other_figures_of_a_report_and_its_evidence_as_they_are(
    tmp_path: Path, tiny_model: Path
) -> None:
    spec = compared_spec(tmp_path, tiny_model, chat_rows(3), NGRAM)
    alone = run_evaluation(
        replace(spec, compare_with=(), reports_arms=False, output_dir=str(tmp_path / "alone")), Recorder()
    )
    compared = run_evaluation(replace(spec, checkpoint_dir=str(tmp_path / "other")), Recorder())

    assert compared.result.keys() - alone.result.keys() == {"arms", "pairs"}
    for name in ("outputs_equal", "acceptance_length", "num_tokens", "first_divergences", "looping_answers"):
        assert compared.result[name] == alone.result[name]
    assert alone.result["concurrencies"][0].keys() == compared.result["concurrencies"][0].keys()
    found, expected = (json.loads(Path(each.artifacts["evidence"]).read_text()) for each in (compared, alone))
    assert found == expected  # the certificate is about the speculator alone


def test_each_arm_answers_the_same_prompts_in_turns(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, model, config = Tokenizer.load(tiny_model), load_model(tiny_model), EngineConfig()
    rows = [prepared(number, f"Question {number}", tokenizer, max_tokens=2) for number in range(16)]
    names = ("plain", "suffix", "speculative", "c", "d")
    engines = {name: Engine(model, NoDrafter(), config) for name in names}
    asked: list[tuple[str, str]] = []
    for name, engine in engines.items():
        monkeypatch.setattr(engine, "add", _recording(name, engine.add, asked))
    arms = Arms(engines["plain"], engines["suffix"], engines["speculative"], further={n: engines[n] for n in "cd"})

    measure(arms, rows, tokenizer=tokenizer, concurrency=1, repeats=1, on_answer=lambda: None)

    of_arm = {name: [row for arm, row in asked if arm == name] for name in names}
    assert of_arm["plain"] == [str(number) for number in range(16)]
    assert all(rows == of_arm["plain"] for rows in of_arm.values())
    chunks = [asked[start : start + 40] for start in (0, 40)]  # 8 rows for each of 5 arms
    assert [{name for name, _ in chunk} for chunk in chunks] == [set(names)] * 2
    assert [name for name, _ in chunks[1]] == [name for name, _ in chunks[0]][::-1]


def _recording(name: str, add: Callable[[Request], None], asked: list[tuple[str, str]]) -> Callable[[Request], None]:
    def record(request: Request) -> None:
        asked.append((name, request.request_id))
        add(request)

    return record


def timed(totals: ArmTotals, *shares: float) -> ArmTotals:
    """Gives each answer its share of the arm's time."""
    totals.timings = [
        AnswerTiming(
            request_seconds=share, first_token_seconds=share / 2, token_seconds=[share / 4], share_seconds=share
        )
        for share in shares
    ]
    return totals


def test_the_interval_of_a_pair_is_that_of_paired_draws_computed_by_hand(
    factory: AnswerFactory, tmp_path: Path, tiny_model: Path
) -> None:
    """Two prompts are drawn as (0, 0), (1, 1), or one of each, with probabilities of 1/4, 1/4 and 1/2.

    With answers of 10 tokens, the ratio of the speeds is the inverse ratio of the times: 2 / 1, 3 / 3 or 5 / 4. Draws
    that were not paired would also give 3 / 1 and 2 / 3.
    """
    answers = factory.answer(0, [70] * 10), factory.answer(1, [71] * 10)
    slow = timed(factory.totals(*answers, seconds=5.0), 2.0, 3.0)
    fast = timed(factory.totals(*answers[::-1], seconds=4.0), 3.0, 1.0)  # the second answer was completed first
    spec = compared_spec(tmp_path, tiny_model, chat_rows(2), NGRAM)

    report = arms_report([Measurement(1, slow, slow, slow, further={"ngram": fast})], spec)

    (pair,) = (p for p in report["pairs"] if (p["arm"], p["baseline"]) == ("ngram", "none"))
    assert pair == {"concurrency": 1, "arm": "ngram", "baseline": "none", "ratio": 1.25, "interval": [1.0, 2.0]}
    (same,) = (p for p in report["pairs"] if (p["arm"], p["baseline"]) == ("spec_a", "none"))
    assert (same["ratio"], same["interval"]) == (1.0, [1.0, 1.0])


def test_the_interval_of_repeated_runs_is_that_of_their_median(
    factory: AnswerFactory, tmp_path: Path, tiny_model: Path
) -> None:
    once = factory.answer(0, [70] * 10), factory.answer(1, [71] * 10)
    plain = timed(factory.totals(*once, seconds=4.0), 2.0, 2.0)
    # Three runs, of which the last was disturbed. The answers of a run are in the order in which they were completed.
    arm = ArmTotals([20, 20, 20], [2.0, 2.0, 40.0], [*once, *once[::-1], *once])
    timed(arm, 1.0, 1.0, 1.0, 1.0, 20.0, 20.0)
    spec = compared_spec(tmp_path, tiny_model, chat_rows(2), NGRAM)
    plain.answers, plain.timings = plain.answers * 3, plain.timings * 3

    report = arms_report([Measurement(1, plain, plain, plain, further={"ngram": arm})], spec)

    (pair,) = (p for p in report["pairs"] if (p["arm"], p["baseline"]) == ("ngram", "none"))
    assert (pair["ratio"], pair["interval"]) == (2.0, [2.0, 2.0])


def test_a_pair_of_one_prompt_has_no_interval(factory: AnswerFactory, tmp_path: Path, tiny_model: Path) -> None:
    arm = timed(factory.totals(factory.answer(0, [70] * 10), seconds=5.0), 5.0)
    spec = compared_spec(tmp_path, tiny_model, chat_rows(1), NGRAM)
    report = arms_report([Measurement(1, arm, arm, arm, further={"ngram": arm})], spec)
    assert {pair["interval"] for pair in report["pairs"]} == {None}


def test_equal_answers_are_counted_for_each_arm(factory: AnswerFactory, tmp_path: Path, tiny_model: Path) -> None:
    same = timed(factory.totals(factory.answer(0, [70, 71]), factory.answer(1, [72]), seconds=1.0), 0.5, 0.5)
    changed = timed(factory.totals(factory.answer(0, [70, 99]), factory.answer(1, [72]), seconds=1.0), 0.5, 0.5)
    spec = compared_spec(tmp_path, tiny_model, chat_rows(2), NGRAM, SUFFIX_AND_NGRAM)
    further = {"ngram": changed, "spec_b": same}
    first = Measurement(1, same, same, same, further=further)
    second = Measurement(4, same, same, same, further=further | {"spec_b": changed})

    counts = {arm["name"]: arm["outputs_equal"] for arm in arms_report([first, second], spec)["arms"]}

    assert counts == {"none": 2, "suffix": 2, "spec_a": 2, "ngram": 1, "spec_b": 1}


def test_an_interrupted_comparison_resumes_with_the_figures_of_all_arms(tmp_path: Path, tiny_model: Path) -> None:
    spec = compared_spec(tmp_path, tiny_model, chat_rows(3), NGRAM)
    spec = interrupted(spec, tmp_path / "staged")
    (measured,) = json.loads((tmp_path / "staged" / "measurements.json").read_text())["measurements"]
    emit = Recorder()

    report = run_evaluation(spec, emit).result

    assert [event.done for event in emit.of("progress")] == list(range(13, 25))  # 4 arms with 3 prompts are measured
    (ngram,) = (arm for arm in report["arms"] if arm["name"] == "ngram")
    (seconds,) = measured["arms"]["ngram"]["seconds"]
    assert ngram["concurrencies"][0]["tokens_per_second"] == round(36 / seconds, 3)
    latencies = sorted(timing["request_seconds"] for timing in measured["arms"]["ngram"]["timings"])
    assert ngram["concurrencies"][0]["request_latency_seconds"]["p50"] == round(latencies[1], 6)


def test_the_memory_of_a_comparison_holds_the_weights_and_caches_of_all_arms(tmp_path: Path, tiny_model: Path) -> None:
    def spec_of(name: str, size: int) -> ComparedArm:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(bytes(size))
        return ComparedArm(name=name, drafter="medusa", speculator_dir=str(folder))

    arms = (spec_of("spec_small", 10**6), spec_of("spec_large", 3 * 10**7), NGRAM)
    spec = replace(compared_spec(tmp_path, tiny_model, chat_rows(1), *arms), device="cpu")
    sizes = ModelSizes.of(read_config(tiny_model))
    wanted = Wanted(device="cpu", memory_bytes=2 * 10**9, concurrency=4, draft_nodes=8, num_engines=6)
    parts = plan(sizes, replace(wanted, speculator_bytes=31 * 10**6)).parts

    config = engine_config(replace(spec, memory_bytes=parts.total - 600 * kv_slot_bytes(sizes)))

    assert config.kv_cache_bytes == parts.kv_cache // 6 - 100 * kv_slot_bytes(sizes)


def test_a_spec_with_further_arms_survives_its_file(tmp_path: Path, tiny_model: Path) -> None:
    spec = compared_spec(tmp_path, tiny_model, chat_rows(1), NGRAM, SUFFIX_AND_NGRAM)
    write_spec(spec, tmp_path / "spec.json")
    assert read_spec(tmp_path / "spec.json") == spec


class ScriptedEngine:
    """Returns the outputs of one step after the other. Each step takes one second."""

    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, *steps: Sequence[tuple[str, int]]) -> None:
        self._steps, self.now = list(steps), 0.0

    def add(self, request: Request) -> None: ...

    def cancel(self, request_id: str) -> None: ...

    def step(self) -> list[StepOutput]:
        self.now += 1.0
        return [StepOutput(name, (70,) * num, None, None, None) for name, num in self._steps.pop(0)]


def test_the_times_of_answers_are_measured_from_their_requests(tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    engine = ScriptedEngine([("0", 1)], [("0", 3), ("1", 1)], [("0", 2), ("1", 2)])
    timed_engine = TimedEngine(engine, clock=lambda: engine.now)
    for number in range(2):
        timed_engine.add(prepared(number, "hello", tokenizer).request)
    for _ in range(2):
        timed_engine.step()
    first = timed_engine.take("0")  # a stop string ended it
    timed_engine.step()
    second = timed_engine.take("1")

    assert first == AnswerTiming(
        request_seconds=2.0, first_token_seconds=1.0, token_seconds=[1 / 3] * 3, share_seconds=1.0
    )
    assert second == AnswerTiming(
        request_seconds=3.0, first_token_seconds=2.0, token_seconds=[0.5] * 2, share_seconds=2.0
    )
