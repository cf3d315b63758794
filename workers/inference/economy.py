"""The cost of tokens on a device of a given price, and the number of tokens after which training has paid off.

    cost of a token   = price of a second / tokens per second
    break-even        = N tokens such that   training_seconds + N / speculative   =   N / plain

`plain` and `speculative` are the speeds in tokens per second. Training and serving use the same device, so the
break-even point does not depend on the device's price. The device is assumed to be always busy at the measured
concurrency; on a device that idles, training pays off later.
"""

import math
from dataclasses import dataclass
from typing import Any

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, slots=True)
class Economics:
    """The inputs of the calculation; None means unknown."""

    price_per_gpu_hour: float | None = None  # USD
    training_seconds: float | None = None  # worker time until the speculator was ready

    @property
    def training_cost(self) -> float | None:
        if self.price_per_gpu_hour is None or self.training_seconds is None:
            return None
        return round(self.training_seconds / SECONDS_PER_HOUR * self.price_per_gpu_hour, 6)

    def figures(self, *, plain: float, speculative: float, tokens_per_answer: float) -> dict[str, Any]:
        """Returns the costs and break-even points. Args: plain, speculative: tokens per second, above 0."""
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
    """Returns the cost in the currency of `price_per_hour`."""
    return price_per_hour / SECONDS_PER_HOUR / tokens_per_second * 1e6


def break_even_tokens(training_seconds: float, plain: float, speculative: float) -> float | None:
    """Returns a number of answer tokens, or None if the speculator saves no time.

    Args: plain, speculative: tokens per second.
    """
    if speculative <= plain:
        return None
    saved = 1 / plain - 1 / speculative  # seconds per token; rounds to 0 if the speeds are almost equal
    return training_seconds / saved if saved > 0 else None
