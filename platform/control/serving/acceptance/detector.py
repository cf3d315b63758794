"""Detects a drop of a deployment's acceptance length. The functions read and write no database.

The values come in bins: the mean acceptance length of some minutes, with the number of drafts. The first
`num_learned` bins give the reference, a mean and a standard deviation. Each later bin adds to Page's one-sided
cumulative sum, in units of the standard deviation:

    z = (reference - value) / max(deviation, FLOOR * reference) * sqrt(min(1, drafts / mean drafts of the reference))
    statistic = max(0, statistic + min(z, MAX_Z) - SLACK)

A statistic of `THRESHOLD` or more is an alarm. From then on the statistic is limited to `THRESHOLD`, and a return to 0
means that the acceptance length has recovered. A drop therefore causes one alarm, however long it lasts.

`SLACK` and `THRESHOLD` give normal values around a perfectly known reference one false alarm in 840,000 bins
(Siegmund's approximation). Errors of the learned reference make that shorter; the tests hold an average of at least
10,000 bins for a reference of `NUM_LEARNED` bins. A shorter reference has larger errors: the tests hold 500 bins for 10
learned bins, and 100 for `MIN_LEARNED`. A lasting drop by d units, 2 <= d <= MAX_Z, is reported after about
THRESHOLD / (d - SLACK) bins. `FLOOR` makes a unit at least 2.5 % of the reference: under heavy traffic the deviation is
so small that a drop without any consequence would exceed it. `MAX_Z` prevents a single bin from causing an alarm. The
square root accounts for bins with fewer drafts than the reference, whose means vary more.

Source: Page 1954, Continuous inspection schemes, Biometrika 41; Siegmund 1985, Sequential analysis, section II.6.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

NUM_LEARNED = 60  # by default
MIN_LEARNED = 3
SLACK = 1.0
THRESHOLD = 6.0
FLOOR = 0.025
MAX_Z = 4.0
CURRENT_SHARE = 0.3  # the weight of the latest bin in the current value


class Change(StrEnum):
    DROPPED = "dropped"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Detector:
    """The detector's state for one speculator of one deployment."""

    num_learned: int = NUM_LEARNED  # bins that give the reference
    num_bins: int = 0  # of the reference; at most num_learned
    num_drafts: float = 0.0  # in the bins of the reference
    mean: float = 0.0  # of the reference, weighted by drafts
    squares: float = 0.0  # sum over the reference's bins: drafts * squared deviation from the mean
    statistic: float = 0.0
    is_dropped: bool = False
    current: float | None = None  # exponentially weighted mean of the latest bins

    @property
    def is_learning(self) -> bool:
        return self.num_bins < self.num_learned

    @property
    def mean_drafts(self) -> float:
        return self.num_drafts / self.num_bins

    @property
    def unit(self) -> float:
        """The standard deviation of the reference's bins, but at least `FLOOR` times the reference's mean."""
        variance = self.squares / (self.num_bins - 1) / self.mean_drafts
        return max(math.sqrt(variance), FLOOR * self.mean)


def observe(detector: Detector, value: float, num_drafts: float) -> tuple[Detector, Change | None]:
    """Adds a bin. Args: value: its mean acceptance length, at least 1. num_drafts: above 0."""
    assert num_drafts > 0, "a bin has drafts"
    current = value if detector.current is None else detector.current + CURRENT_SHARE * (value - detector.current)
    if detector.is_learning:
        return replace(_learned(detector, value, num_drafts), current=current), None
    z = (detector.mean - value) / detector.unit * math.sqrt(min(1.0, num_drafts / detector.mean_drafts))
    statistic = max(0.0, detector.statistic + min(z, MAX_Z) - SLACK)
    change = None
    if not detector.is_dropped and statistic >= THRESHOLD:
        change = Change.DROPPED
    elif detector.is_dropped and statistic == 0.0:
        change = Change.RECOVERED
    is_dropped = detector.is_dropped if change is None else change is Change.DROPPED
    after = replace(detector, statistic=min(statistic, THRESHOLD), is_dropped=is_dropped, current=current)
    return after, change


def _learned(detector: Detector, value: float, num_drafts: float) -> Detector:
    """Adds a bin to the reference. Source: West 1979, Updating mean and variance estimates, CACM 22."""
    total = detector.num_drafts + num_drafts
    mean = detector.mean + (value - detector.mean) * num_drafts / total
    squares = detector.squares + num_drafts * (value - detector.mean) * (value - mean)
    return replace(detector, num_bins=detector.num_bins + 1, num_drafts=total, mean=mean, squares=squares)
