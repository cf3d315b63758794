"""The three arms of an evaluation: plain decoding, suffix decoding alone and the speculator."""

from pathlib import Path

import pytest

from engine.tokenizer import Tokenizer
from tests.workers.inference.test_evaluation import AnswerFactory, prepared, report_of
from workers.inference.comparison import ARMS, Measurement, _turns


@pytest.fixture(scope="module")
def factory(tiny_model: Path) -> AnswerFactory:
    return AnswerFactory(Tokenizer.load(tiny_model))


def test_a_report_compares_plain_decoding_suffix_decoding_alone_and_the_speculator(factory: AnswerFactory) -> None:
    plain = factory.totals(factory.answer(0, [70] * 12), seconds=4.0)
    suffix = factory.totals(factory.answer(0, [70] * 12, passes=6, accepted=3), seconds=2.0)
    drafted = factory.totals(factory.answer(0, [70] * 12, passes=3, accepted=6), seconds=1.5)

    report = report_of(Measurement(1, plain, suffix, drafted))

    for figures in (report, *report["concurrencies"]):
        assert [figures[f"tokens_per_second_{arm}"] for arm in ("plain", "suffix", "speculative")] == [3.0, 6.0, 8.0]
        assert (figures["speedup_suffix"], figures["speedup"]) == (2.0, 2.6667)
        assert figures["speedup_over_suffix"] == 1.3333
        assert (figures["acceptance_length_suffix"], figures["acceptance_length"]) == (1.5, 3.0)


def test_an_answer_that_only_suffix_decoding_changes_counts_as_different(factory: AnswerFactory) -> None:
    same = factory.totals(factory.answer(0, [70, 71]), seconds=1.0)
    changed = factory.totals(factory.answer(0, [70, 72]), seconds=1.0)
    assert report_of(Measurement(1, same, changed, same))["outputs_equal"] == 0


def test_each_arm_answers_every_chunk_and_every_second_chunk_reverses_the_order(tiny_model: Path) -> None:
    rows = [prepared(0, "hi", Tokenizer.load(tiny_model))] * 32
    names = [name for name, _ in _turns(ARMS, rows, 1, repeat=0)]
    orders = [names[start : start + 3] for start in range(0, len(names), 3)]
    assert all(sorted(order) == sorted(ARMS) for order in orders)
    assert (orders[1], orders[3]) == (orders[0][::-1], orders[2][::-1])
    assert orders[0] != orders[2]
