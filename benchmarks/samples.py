"""The measurements of a run of `benchmarks.cpu`, and their uncertainty.

An arm is an engine with a drafting method. In a round, all arms answer the same prompts in turn. A ratio of speeds is
computed for each round, because the speed of the machine changes less within a round than between rounds.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The measurement of one arm in one round at one batch size."""

    arm: str
    own_plain: str  # the arm with the same engine and weights but without speculation, which may be this arm
    weights: str
    batch_size: int
    round: int
    tokens_per_second: float  # tokens / seconds
    tokens: int  # generated for all prompts
    seconds: float
    ttft_seconds: float  # median over the prompts
    prefill_seconds: float | None
    acceptance_length: float | None
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
        """Returns half the width of the 95 % confidence interval of the median.

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
        """Returns the speed of `arm` divided by that of `other`, computed for each round."""
        denominators = {sample.round: sample.tokens_per_second for sample in self.of(other, batch_size)}
        return Spread.of(
            [
                sample.tokens_per_second / denominators[sample.round]
                for sample in self.of(arm, batch_size)
                if sample.round in denominators
            ]
        )

    def fastest_plain(self, weights: str, batch_size: int) -> str | None:
        """Returns the fastest arm without speculation that has weights of this format."""
        plain = {
            sample.arm
            for sample in self.all
            if sample.batch_size == batch_size and sample.weights == weights and sample.is_plain
        }
        return self.fastest(sorted(plain), batch_size)

    def fastest(self, arms: Sequence[str], batch_size: int) -> str | None:
        speeds = {arm: speed.median for arm in arms if (speed := self.speed(arm, batch_size)) is not None}
        return max(speeds, key=lambda arm: speeds[arm], default=None)
