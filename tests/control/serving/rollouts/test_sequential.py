"""With the stated probability, the intervals of a confidence sequence contain the mean at all times."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.serving.rollouts.sequential import Interval, Sums, bernoulli_interval, bounded_interval

NUM_STREAMS = 300
BATCHES = [*[1] * 30, *[5] * 34, *[50] * 36]  # sizes of the batches, after each of which the interval is checked
shares = st.floats(0.0, 1.0)


def contains(interval: Interval, mean: float) -> bool:
    return interval.low <= mean <= interval.high


def sums_of(stream: Iterator[float]) -> Iterator[Sums]:
    sums = Sums()
    for size in BATCHES:
        sums = sums.plus([next(stream) for _ in range(size)])
        yield sums


def misses_bernoulli(seed: int, mean: float, alpha: float) -> bool:
    """Whether the interval misses the mean at any time."""
    drawn = random.Random(seed)
    stream = iter(lambda: float(drawn.random() < mean), None)
    return any(not contains(bernoulli_interval(round(s.total), s.num, alpha), mean) for s in sums_of(stream))


def misses_bounded(seed: int, low: float, high: float, alpha: float) -> bool:
    drawn = random.Random(seed)
    stream = iter(lambda: drawn.choice((low, high)), None)
    return any(not contains(bounded_interval(s, alpha), (low + high) / 2) for s in sums_of(stream))


@pytest.mark.parametrize("mean", [0.01, 0.2, 0.5])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_an_interval_for_a_share_misses_it_at_any_time_in_at_most_alpha_of_the_streams(
    mean: float, alpha: float
) -> None:
    num_missed = sum(misses_bernoulli(seed, mean, alpha) for seed in range(NUM_STREAMS))

    assert num_missed <= alpha * NUM_STREAMS


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.4, 0.6), (0.0, 0.1)])
@pytest.mark.parametrize("alpha", [0.05, 0.2])
def test_an_interval_for_a_mean_misses_it_at_any_time_in_at_most_alpha_of_the_streams(
    low: float, high: float, alpha: float
) -> None:
    num_missed = sum(misses_bounded(seed, low, high, alpha) for seed in range(NUM_STREAMS))

    assert num_missed <= alpha * NUM_STREAMS


def test_the_interval_for_a_mean_is_narrower_if_the_numbers_vary_less() -> None:
    narrow, wide = Sums(), Sums()
    for _ in range(1000):
        narrow, wide = narrow.plus([0.49, 0.51]), wide.plus([0.0, 1.0])

    first, second = bounded_interval(narrow, 0.05), bounded_interval(wide, 0.05)

    assert first.high - first.low < 0.03
    assert first.high - first.low < (second.high - second.low) / 3


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(0, 300), st.integers(0, 300), st.floats(0.001, 0.5))
def test_an_interval_for_a_share_contains_the_observed_share_and_shrinks_with_alpha(
    num_true: int, num_false: int, alpha: float
) -> None:
    num = num_true + num_false
    interval, wider = bernoulli_interval(num_true, num, alpha), bernoulli_interval(num_true, num, alpha / 2)

    assert 0.0 <= wider.low <= interval.low <= interval.high <= wider.high <= 1.0
    assert not num or contains(interval, num_true / num)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(shares, max_size=40), st.lists(shares, max_size=40))
def test_an_interval_for_a_mean_contains_the_observed_mean(first: list[float], second: list[float]) -> None:
    sums = Sums().plus(first).plus(second)

    interval = bounded_interval(sums, 0.05)

    assert sums.mean is None or interval.low <= sums.mean + 1e-9
    assert sums.mean is None or interval.high >= sums.mean - 1e-9


@pytest.mark.parametrize("number", [-0.1, 1.1, float("nan")])
def test_numbers_beyond_0_and_1_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        Sums().plus([number])
