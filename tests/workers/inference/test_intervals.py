"""Tests of the bootstrap confidence intervals over prompts."""

from pathlib import Path

import numpy as np
import pytest

from engine.tokenizer import Tokenizer
from tests.workers.inference.test_evaluation import AnswerFactory, report_of
from workers.inference.comparison import Measurement
from workers.inference.intervals import ratio_interval


def test_the_interval_contains_the_known_ratio_in_about_95_percent_of_samples() -> None:
    """Each prompt has a different rate. The passes of one prompt are therefore alike, as are the passes of a real
    answer."""
    random, runs, covered = np.random.default_rng(7), 600, 0
    for _ in range(runs):
        rates = random.gamma(4.0, 0.25, size=48)  # their mean is 1
        passes = random.integers(20, 80, size=48)
        found = ratio_interval(random.poisson(rates * passes).tolist(), passes.tolist())
        assert found is not None
        covered += found[0] <= 1.0 <= found[1]
    # Percentile intervals of 48 prompts cover slightly less than 95 %; the standard error of 600 runs is 1 %.
    assert 0.90 <= covered / runs <= 0.98


def test_a_ratio_over_one_prompt_has_no_interval() -> None:
    assert ratio_interval([3.0], [2.0]) is None


def test_the_interval_in_a_report_treats_all_repeats_of_a_prompt_as_one_sample(tiny_model: Path) -> None:
    factory = AnswerFactory(Tokenizer.load(tiny_model))
    low = [factory.answer(number, [70, 71], passes=10, accepted=1) for number in range(4)]
    high = [factory.answer(number, [70, 71], passes=10, accepted=9) for number in range(4, 8)]
    once, thrice = (factory.totals(*(n * [*low, *high]), seconds=1.0) for n in (1, 3))

    report, repeated = report_of(Measurement(1, once, once, once)), report_of(Measurement(1, thrice, thrice, thrice))

    (lower, upper) = report["acceptance_length_interval"]
    assert 1.1 <= lower < report["acceptance_length"] == 1.5 < upper <= 1.9
    assert repeated["acceptance_length_interval"] == [lower, upper]  # repeats add no samples
    assert report["concurrencies"][0]["acceptance_length_suffix_interval"] == pytest.approx([lower, upper])
