"""The detector causes few false alarms on stationary noise, and an alarm soon after a drop."""

import math
import random
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.serving.acceptance.detector import (
    FLOOR,
    MAX_Z,
    MIN_LEARNED,
    NUM_LEARNED,
    SLACK,
    THRESHOLD,
    Change,
    Detector,
    observe,
)

MEAN, DEVIATION, DRAFTS = 2.5, 0.15, 1_000.0
MIN_AVERAGE_RUN = 10_000  # bins between two false alarms, which the module states
MIN_AVERAGE_RUNS = {10: 500, MIN_LEARNED: 100}  # the same by the number of bins of a shorter reference
UNITS = st.floats(2.0, MAX_Z)


def noise(seed: int, *, mean: float = MEAN, deviation: float = DEVIATION) -> Iterator[float]:
    draw = random.Random(seed)
    while True:
        yield max(1.0, draw.gauss(mean, deviation))


def learned(values: Iterator[float], num_learned: int = NUM_LEARNED) -> Detector:
    detector = Detector(num_learned=num_learned)
    for _ in range(num_learned):
        detector, change = observe(detector, next(values), DRAFTS)
        assert change is None
    return detector


def changes(detector: Detector, values: Iterable[float], num_drafts: float = DRAFTS) -> list[tuple[int, Change]]:
    """Returns each change with the number of the bin that caused it. The first bin has the number 1."""
    found = []
    for number, value in enumerate(values, start=1):
        detector, change = observe(detector, value, num_drafts)
        if change is not None:
            found.append((number, change))
    return found


def drops(found: list[tuple[int, Change]]) -> list[int]:
    return [number for number, change in found if change is Change.DROPPED]


def test_stationary_noise_causes_fewer_false_alarms_than_one_in_ten_thousand_bins() -> None:
    """Each series learns a reference of its own, so the errors of learned references are included."""
    num_series, num_bins, num_alarms = 200, 2_000, 0
    for seed in range(num_series):
        values = noise(seed)
        detector = learned(values)
        num_alarms += len(drops(changes(detector, (next(values) for _ in range(num_bins)))))
    assert num_alarms <= num_series * num_bins / MIN_AVERAGE_RUN


@pytest.mark.parametrize("num_learned", MIN_AVERAGE_RUNS)
def test_a_shorter_reference_causes_no_more_false_alarms_than_stated(num_learned: int) -> None:
    num_series, num_bins, num_alarms = 300, 500, 0
    for seed in range(num_series):
        values = noise(seed)
        detector = learned(values, num_learned)
        assert not detector.is_learning
        num_alarms += len(drops(changes(detector, (next(values) for _ in range(num_bins)))))
    assert num_alarms <= num_series * num_bins / MIN_AVERAGE_RUNS[num_learned]


@pytest.mark.parametrize("units", [2.0, 3.0, 4.0])
def test_a_lasting_drop_is_reported_within_the_stated_delay(units: float) -> None:
    delays = []
    for seed in range(200):
        values = noise(seed)
        detector = learned(values)
        after = (next(values) - units * detector.unit for _ in range(200))
        delays.append(drops(changes(detector, after))[0])
    stated = THRESHOLD / (units - SLACK)
    assert stated - 1 < sum(delays) / len(delays) < stated + 1.5
    assert max(delays) <= 4 * stated + 4


@given(units=UNITS, seed=st.integers(0, 1_000))
@settings(max_examples=50, deadline=None)
def test_a_drop_without_noise_is_one_alarm_and_a_return_is_one_recovery(units: float, seed: int) -> None:
    detector = learned(noise(seed))
    low, high = detector.mean - (units + 1e-9) * detector.unit, detector.mean
    found = changes(detector, [high] * 20 + [low] * 100 + [high] * 100)
    assert [change for _, change in found] == [Change.DROPPED, Change.RECOVERED]
    assert found[0][0] == 20 + math.ceil(THRESHOLD / (units - SLACK) - 1e-9)
    assert found[1][0] == 120 + THRESHOLD / SLACK


@given(value=st.floats(1.0, MEAN), at=st.integers(0, 30))
@settings(max_examples=50, deadline=None)
def test_a_single_bin_never_causes_an_alarm(value: float, at: int) -> None:
    detector = learned(noise(0))
    values = [detector.mean] * 40
    values[at] = value
    assert changes(detector, values) == []


@given(share=st.floats(0.0, FLOOR * SLACK * 0.99), deviation=st.floats(0.0, 0.01))
@settings(max_examples=30, deadline=None)
def test_a_drop_without_consequence_causes_no_alarm_however_exact_the_reference_is(
    share: float, deviation: float
) -> None:
    detector = learned(noise(1, deviation=deviation))
    assert changes(detector, [detector.mean * (1 - share)] * 500) == []


def test_bins_with_few_drafts_cause_no_more_false_alarms() -> None:
    """A bin with a 16th of the drafts has a mean whose standard deviation is four times as large."""
    num_alarms = 0
    for seed in range(100):
        detector, values = learned(noise(seed)), noise(seed + 1_000, deviation=4 * DEVIATION)
        num_alarms += len(drops(changes(detector, (next(values) for _ in range(500)), DRAFTS / 16)))
    assert num_alarms <= 100 * 500 / MIN_AVERAGE_RUN


def test_the_reference_is_weighted_by_drafts() -> None:
    detector = Detector()
    for value, num_drafts in ((2.0, 300.0), (3.0, 100.0)) * (NUM_LEARNED // 2):
        detector, _ = observe(detector, value, num_drafts)
    assert not detector.is_learning
    assert detector.mean == pytest.approx(2.25)
    assert detector.mean_drafts == pytest.approx(200.0)
    # the weighted variance per draft is (300 * 0.25² + 100 * 0.75²) / 2 per bin, for bins of 200 drafts
    expected = (300 * 0.0625 + 100 * 0.5625) / 2 * NUM_LEARNED / (NUM_LEARNED - 1) / 200
    assert detector.unit == pytest.approx(math.sqrt(expected))
