"""The measurements of a run of `benchmarks.cpu`, and their uncertainty.

An arm is an engine with a drafting method and a weight format. In a round, the arms take turns to answer the same
prompts. Only speeds of the same round are divided by each other, so that slow changes of the machine's speed affect
numerator and denominator equally.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The measurement of one arm in one round at one batch size."""

    arm: str
    own_plain: str  # the arm with the same engine and weights but without speculation, possibly this arm itself
    weights: str
    batch_size: int
    round: int
    tokens_per_second: float  # tokens / seconds
    tokens: int  # generated for all prompts
    seconds: float
    ttft_seconds: float  # median over the prompts
    prefill_seconds: float | None  # None: the engine does not report it
    acceptance_length: float | None  # None: the engine does not report it
    prompts: int
    equal: int | None  # number of answers equal to those of `own_plain`; None if that arm did not run in this round
    load_average: float  # one-minute load average when the arm started

    @property
    def is_plain(self) -> bool:
        return self.arm == self.own_plain


@dataclass(frozen=True, slots=True)
class Spread:
    median: float
    low: float  # first quartile
    high: float  # third quartile
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        if not values:
            return None
        if len(values) == 1:
            return cls(values[0], values[0], values[0], 1)
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    @property
    def uncertainty(self) -> float:
        """Half the width of the median's 95 % confidence interval.

        Source: McGill, Tukey and Larsen 1978, notched box plots.
        """
        return 1.57 * (self.high - self.low) / math.sqrt(self.count)


class Samples:
    def __init__(self, samples: Sequence[Sample] = ()) -> None:
        self.all = list(samples)

    def add(self, sample: Sample) -> None:
        self.all.append(sample)

    def of(self, arm: str, batch_size: int) -> list[Sample]:
        return [sample for sample in self.all if sample.arm == arm and sample.batch_size == batch_size]

    def speed(self, arm: str, batch_size: int) -> Spread | None:
        return Spread.of([sample.tokens_per_second for sample in self.of(arm, batch_size)])

    def ratio(self, arm: str, other: str, batch_size: int) -> Spread | None:
        """Returns the spread, over the rounds with both arms, of the speed of `arm` divided by that of `other`."""
        denominators = {sample.round: sample.tokens_per_second for sample in self.of(other, batch_size)}
        return Spread.of(
            [
                sample.tokens_per_second / denominators[sample.round]
                for sample in self.of(arm, batch_size)
                if sample.round in denominators
            ]
        )

    def fastest_plain(self, weights: str, batch_size: int) -> str | None:
        """Returns the fastest arm without speculation among those with this weight format."""
        plain = {
            sample.arm
            for sample in self.all
            if sample.batch_size == batch_size and sample.weights == weights and sample.is_plain
        }
        return self.fastest(sorted(plain), batch_size)

    def fastest(self, arms: Sequence[str], batch_size: int) -> str | None:
        speeds = {arm: speed.median for arm in arms if (speed := self.speed(arm, batch_size)) is not None}
        return max(speeds, key=lambda arm: speeds[arm], default=None)
