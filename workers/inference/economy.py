"""The cost of answers on a device of a given price, and the number of answers after which training has paid off.

    cost of a token   = price of a second / tokens per second
    break-even        = N such that   training_seconds + N / speculative   =   N / plain      (tokens per second)

Training has the price of serving, so the break-even point does not depend on the price. The device is assumed to be
always busy at the measured concurrency; on a device that idles, training pays off later.
"""

import math
from dataclasses import dataclass
from typing import Any

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Economics:
    """Either may be unknown."""

    price_per_gpu_hour: float | None = None  # USD
    training_seconds: float | None = None  # worker time until the speculator was ready

    @property
    def training_cost(self) -> float | None:
        if self.price_per_gpu_hour is None or self.training_seconds is None:
            return None
        return round(self.training_seconds / SECONDS_PER_HOUR * self.price_per_gpu_hour, 6)

    def figures(self, *, plain: float, speculative: float, tokens_per_answer: float) -> dict[str, Any]:
        """`plain` and `speculative` in tokens per second, above 0."""
        tokens = None
        if self.training_seconds is not None:
            tokens = break_even_tokens(self.training_seconds, plain, speculative)
        return {
            "cost_per_million_tokens_plain": self._per_million(plain),
            "cost_per_million_tokens_speculative": self._per_million(speculative),
            "break_even_tokens": None if tokens is None else math.ceil(tokens),
            "break_even_requests": None if tokens is None else math.ceil(tokens / max(1.0, tokens_per_answer)),
        }

    def _per_million(self, tokens_per_second: float) -> float | None:
        price = self.price_per_gpu_hour
        return None if price is None else round(cost_per_million_tokens(price, tokens_per_second), 6)


def cost_per_million_tokens(price_per_hour: float, tokens_per_second: float) -> float:
    """In the currency of the price."""
    return price_per_hour / SECONDS_PER_HOUR / tokens_per_second * 1e6


def break_even_tokens(training_seconds: float, plain: float, speculative: float) -> float | None:
    """Returns answer tokens. None: the break-even point is never reached, since no time is saved."""
    if speculative <= plain:
        return None
    saved = 1 / plain - 1 / speculative  # of a token; 0 where the two are too close for a float
    return training_seconds / saved if saved > 0 else None
