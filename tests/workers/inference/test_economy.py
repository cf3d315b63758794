"""The cost of a token, and the break-even point of training."""

import pytest
from hypothesis import given
from hypothesis.strategies import floats

from workers.inference.economy import Economics, break_even_tokens, cost_per_million_tokens

PRICES = floats(0.01, 1000.0)
SPEEDS = floats(0.1, 1e6)  # tokens per second
SECONDS = floats(1.0, 1e7)


@given(PRICES, SPEEDS)
def test_the_tokens_generated_in_one_hour_cost_the_price_per_hour(price: float, speed: float) -> None:
    tokens = speed * 3600
    assert cost_per_million_tokens(price, speed) * tokens / 1e6 == pytest.approx(price)


@given(PRICES, SPEEDS, SPEEDS)
def test_the_cost_of_a_token_is_inversely_proportional_to_the_speed(
    price: float, plain: float, speculative: float
) -> None:
    ratio = cost_per_million_tokens(price, plain) / cost_per_million_tokens(price, speculative)
    assert ratio == pytest.approx(speculative / plain)


@given(PRICES, SECONDS, SPEEDS, floats(1.001, 20.0))
def test_at_the_break_even_point_plain_and_speculative_decoding_cost_the_same(
    price: float, seconds: float, plain: float, speedup: float
) -> None:
    tokens = break_even_tokens(seconds, plain, plain * speedup)
    assert tokens is not None
    plain_cost = cost_per_million_tokens(price, plain) * tokens / 1e6
    speculative_cost = cost_per_million_tokens(price, plain * speedup) * tokens / 1e6
    training_cost = price / 3600 * seconds
    assert training_cost + speculative_cost == pytest.approx(plain_cost)


@given(SECONDS, SPEEDS, floats(0.01, 1.0))
def test_a_speculator_without_a_speedup_has_no_break_even_point(seconds: float, plain: float, speedup: float) -> None:
    assert break_even_tokens(seconds, plain, plain * speedup) is None


def test_economic_figures_without_a_price_or_training_time_are_none() -> None:
    figures = Economics().figures(plain=10.0, speculative=20.0, tokens_per_answer=5.0)
    assert set(figures.values()) == {None}
    assert Economics(price_per_gpu_hour=2.0).training_cost is None
    assert Economics(price_per_gpu_hour=2.0, training_seconds=1800.0).training_cost == 1.0
