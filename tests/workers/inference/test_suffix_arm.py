"""An evaluation of a trained speculator also measures suffix decoding alone, which needs no training."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.tokenizer import Tokenizer
from tests.workers.exports.speculators import write_speculator
from tests.workers.inference.test_evaluation import AnswerFactory, interrupted, make_spec, report_of
from tests.workers.support import Recorder, chat_rows
from workers.contracts import EvaluationSpec
from workers.inference import comparison, evaluation
from workers.inference.comparison import Measurement

FIGURES = ("tokens_per_second_suffix", "acceptance_length_suffix", "speedup_suffix", "speedup_over_suffix")


def make_trained_spec(folder: Path, model: Path) -> EvaluationSpec:
    speculator = write_speculator("medusa", folder / "speculator", model)
    spec = make_spec(folder, model, chat_rows(5, temperature=0.7))
    return replace(spec, drafter="medusa+suffix", speculator_dir=str(speculator), concurrencies=(1, 2))


def suffix_figures(point: Mapping[str, Any]) -> list[float | None]:
    return [point[name] for name in FIGURES]


def test_a_trained_speculator_is_compared_with_suffix_decoding_in_the_same_run(
    tmp_path: Path, tiny_model: Path
) -> None:
    spec, emit = make_trained_spec(tmp_path, tiny_model), Recorder()

    finished = evaluation.run_evaluation(spec, emit)

    report = finished.result
    assert (report["prompts_held_out"], report["outputs_equal"]) == (5, 5)
    for point in (report, *report["concurrencies"]):
        assert all(figure is not None and figure > 0 for figure in suffix_figures(point))
        ratio = point["tokens_per_second_speculative"] / point["tokens_per_second_suffix"]
        assert point["speedup_over_suffix"] == pytest.approx(ratio, rel=0.01)
    assert [event.done for event in emit.of("progress")] == list(range(1, 5 * 3 * 2 + 1))
    evidence = json.loads(Path(finished.artifacts["evidence"]).read_text())
    assert evidence["counts"]["answers"] == 5 * 3 * 2


def test_an_evaluation_without_a_trained_speculator_has_no_such_figures(tmp_path: Path, tiny_model: Path) -> None:
    report = evaluation.run_evaluation(make_spec(tmp_path, tiny_model, chat_rows(2)), Recorder()).result

    assert suffix_figures(report) == [None] * 4


def test_an_interrupted_evaluation_keeps_the_measurements_of_all_arms(tmp_path: Path, tiny_model: Path) -> None:
    spec = interrupted(make_trained_spec(tmp_path, tiny_model), tmp_path / "staged")
    (stored,) = json.loads((tmp_path / "staged" / "measurements.json").read_text())["measurements"]

    report = evaluation.run_evaluation(spec, Recorder()).result

    speed = stored["suffix"]["num_tokens"][0] / stored["suffix"]["seconds"][0]
    assert report["tokens_per_second_suffix"] == round(speed, 4)


def test_the_caches_of_three_arms_share_the_memory(tmp_path: Path, tiny_model: Path) -> None:
    spec = replace(make_trained_spec(tmp_path, tiny_model), device="cpu", memory_bytes=10**9)

    arms = evaluation.load_arms(spec).by_name
    without = evaluation.load_arms(replace(spec, drafter="ngram", speculator_dir=None)).by_name

    assert [*arms] == ["plain", "suffix", "speculative"]
    assert len({engine.cache.num_slots for engine in arms.values()}) == 1
    assert arms["plain"].cache.num_slots <= without["plain"].cache.num_slots


def test_the_arms_begin_in_turn() -> None:
    rows: list[Any] = list(range(24))  # three chunks

    turns = comparison._turns(["plain", "suffix", "speculative"], rows, 1, repeat=1)

    assert [name for name, _ in turns] == [
        *("suffix", "speculative", "plain"),
        *("speculative", "plain", "suffix"),
        *("plain", "suffix", "speculative"),
    ]


def test_an_answer_of_suffix_decoding_that_differs_counts_as_different(tiny_model: Path) -> None:
    factory = AnswerFactory(Tokenizer.load(tiny_model))
    plain = factory.totals(factory.answer(0, [70, 71, 72]), seconds=1.0)
    suffix = factory.totals(factory.answer(0, [70, 99, 72], passes=2, accepted=1), seconds=0.5)
    drafted = factory.totals(factory.answer(0, [70, 71, 72]), seconds=0.25)

    report = report_of(Measurement(1, plain, drafted, suffix))

    assert (report["outputs_equal"], report["first_divergences"][0]["position"]) == (0, 1)
    assert suffix_figures(report) == [6.0, 1.5, 2.0, 2.0]
    assert report["speedup"] == 4.0
