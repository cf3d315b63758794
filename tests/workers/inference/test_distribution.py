"""Tests of the chi-square test that compares tokens sampled with and without speculation."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.load import load_engine
from engine.tokenizer import Tokenizer
from tests.workers.inference.test_evaluation import prepared
from workers.inference import distribution
from workers.inference.comparison import Arms
from workers.inference.distribution import compare_distributions, homogeneity


def test_the_p_value_of_two_counts_equals_the_value_computed_by_hand() -> None:
    # (10 - 15)^2 / 15 * 4 = 6.667, with one degree of freedom
    assert homogeneity(Counter({1: 10, 2: 20}), Counter({1: 20, 2: 10})) == pytest.approx(0.00982, abs=1e-5)


def test_rare_tokens_are_compared_in_groups_and_equal_answers_have_no_p_value() -> None:
    assert homogeneity(Counter({1: 100}), Counter({1: 100})) is None
    assert homogeneity(Counter({1: 96, 2: 4}), Counter({1: 96, 3: 4})) is None  # 4 samples are too few to compare
    common = {1: 50, 2: 40}
    same_groups = (Counter(common | dict.fromkeys(range(first, first + 80, 8), 1)) for first in (8, 808))
    assert homogeneity(*same_groups) == pytest.approx(1.0)
    other_groups = (Counter(common | dict.fromkeys(range(first, first + 160, 8), 1)) for first in (8, 809))
    assert homogeneity(*other_groups) == pytest.approx(0.0, abs=1e-6)


def test_samples_of_one_distribution_seldom_have_a_small_p_value() -> None:
    random, runs = np.random.default_rng(3), 1000
    chances = np.array([0.4, 0.2, 0.1, 0.1, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01])
    p_values = [
        homogeneity(*(Counter(random.choice(10, size=100, p=chances).tolist()) for _ in range(2))) for _ in range(runs)
    ]
    small = sum(p_value is not None and p_value < 0.05 for p_value in p_values)
    assert 0.02 <= small / runs <= 0.08


@pytest.fixture
def arms(tiny_model: Path) -> Arms:
    config = EngineConfig(draft_budget=8)
    plain, suffix, speculative = (
        load_engine(tiny_model, drafter=d, config=config) for d in ("none", "suffix", "ngram")
    )
    return Arms(plain=plain, suffix=suffix, speculative=speculative)


def test_speculative_samples_have_the_distribution_of_plain_samples(arms: Arms, tiny_model: Path) -> None:
    tokenizer = Tokenizer.load(tiny_model)
    found = compare_distributions(arms, [prepared(number, f"Question {number}", tokenizer) for number in range(3)])

    assert (found.prompts, found.samples, found.tokens) == (2, 100, 3)
    assert found.p_value is not None
    assert found.p_value > 1e-6


def test_the_p_value_is_tiny_if_the_speculative_arm_samples_at_another_temperature(
    arms: Arms, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = arms.speculative.add
    monkeypatch.setattr(
        arms.speculative,
        "add",
        lambda request: add(replace(request, sampling=replace(request.sampling, temperature=0.3))),
    )
    monkeypatch.setattr(distribution, "NUM_SAMPLES", 400)
    found = compare_distributions(arms, [prepared(0, "Question", Tokenizer.load(tiny_model))])

    assert found.p_value is not None
    assert found.p_value < 1e-6
