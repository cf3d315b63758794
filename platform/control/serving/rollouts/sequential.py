"""Confidence sequences: intervals for a mean that hold at all times at once.

An ordinary confidence interval holds at one sample size that was fixed in advance. If one computes it after every
request and acts on the first convincing interval, errors are far more frequent than alpha. The intervals below contain
the mean at all sample sizes at once with probability 1 - alpha, so a decision may be made at any time.

    bernoulli_interval   shares, such as the share of requests that failed; exact for independent observations
    bounded_interval     means of numbers from 0 to 1; narrow if the numbers vary little

Both functions need only sums over the observations, so several processes can add to the same evidence. The intervals
describe the average of the conditional means of the observations, so observations need not have the same distribution.

Source: Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Annals of
Statistics 49(2), 2021, arXiv:1810.08240: the beta-binomial mixture (section 3.2), the polynomial stitched boundary
(theorem 1) and the empirical Bernstein confidence sequence (theorem 4).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_PRIOR_MEAN = 0.5  # the prediction before the first observation
# Parameters of the stitched boundary. They affect only its width: time is divided into epochs whose variances grow by
# the factor _ETA, and the k-th epoch gets the share 1 / _epoch_weight(k) of alpha.
_ETA = 2.0
_EXPONENT = 1.4
_FIRST_VARIANCE = 1.0  # variances below it are treated as equal to it
_ZETA = 3.1055472779775810  # Riemann's zeta function at _EXPONENT
_BISECTIONS = 60


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval within [0, 1]."""

    low: float
    high: float


EVERYTHING = Interval(0.0, 1.0)  # the interval before the first observation


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums of observations from 0 to 1, and of their squared distances from predictions."""

    num: int = 0
    total: float = 0.0
    variance: float = 0.0  # the sum over all observations of (observation - prediction)^2

    @property
    def mean(self) -> float | None:
        return self.total / self.num if self.num else None

    def plus(self, observations: Sequence[float]) -> "Sums":
        """Adds observations. The prediction for all of them is the mean of those before them.

        Raises: ValueError: an observation is not between 0 and 1.
        """
        if not all(0.0 <= each <= 1.0 for each in observations):
            raise ValueError(f"observations must be between 0 and 1, got {observations}")
        predicted = (self.total + _PRIOR_MEAN) / (self.num + 1)
        return Sums(
            self.num + len(observations),
            self.total + math.fsum(observations),
            self.variance + math.fsum((each - predicted) ** 2 for each in observations),
        )


def bernoulli_interval(num_true: int, num: int, alpha: float) -> Interval:
    """Returns the interval of the probabilities that a uniform mixture of alternatives does not refute at level alpha.

    The mixture's likelihood ratio against the true probability is a martingale that begins at 1. By Ville's inequality,
    the probability that it ever reaches 1 / alpha is at most alpha.
    """
    if not num:
        return EVERYTHING
    log_mixture = math.lgamma(num_true + 1) + math.lgamma(num - num_true + 1) - math.lgamma(num + 2)

    def is_refuted(probability: float) -> bool:
        log_likelihood = _times_log(num_true, probability) + _times_log(num - num_true, 1.0 - probability)
        return log_mixture - log_likelihood >= math.log(1.0 / alpha)

    # The ratio is smallest at the observed share and grows towards both ends.
    share = num_true / num
    low = 0.0 if not num_true else _bisect(is_refuted, 0.0, share)
    high = 1.0 if num_true == num else _bisect(is_refuted, 1.0, share)
    return Interval(low, high)


def bounded_interval(sums: Sums, alpha: float) -> Interval:
    """Returns the interval of the means that the observations do not refute. Each side gets half of alpha."""
    if not sums.num:
        return EVERYTHING
    radius = _boundary(sums.variance, alpha / 2.0) / sums.num
    mean = sums.total / sums.num
    return Interval(max(0.0, mean - radius), min(1.0, mean + radius))


def _boundary(variance: float, alpha: float) -> float:
    """Returns the polynomial stitched boundary for numbers from 0 to 1. The probability that the sum of their
    deviations ever exceeds the boundary is at most alpha."""
    variance = max(variance, _FIRST_VARIANCE)
    epoch = math.log(variance / _FIRST_VARIANCE, _ETA)
    log_weight = _EXPONENT * math.log(epoch + 1.0) + math.log(_ZETA) + math.log(1.0 / alpha)
    spread = (_ETA**0.25 + _ETA**-0.25) / math.sqrt(2.0)
    scale = (math.sqrt(_ETA) + 1.0) / 2.0
    return math.sqrt(spread**2 * variance * log_weight + (scale * log_weight) ** 2) + scale * log_weight


def _times_log(count: int, value: float) -> float:
    return count * math.log(value) if count and value > 0.0 else (-math.inf if count else 0.0)


def _bisect(is_refuted: Callable[[float], bool], refuted: float, kept: float) -> float:
    """Returns the border between the refuted and the kept values. It is a refuted value, so that rounding never narrows
    the interval."""
    for _ in range(_BISECTIONS):
        middle = (refuted + kept) / 2.0
        if is_refuted(middle):
            refuted = middle
        else:
            kept = middle
    return refuted
