"""Confidence intervals by the bootstrap over prompts.

Prompts are the independent samples, because the passes of one answer are alike. Whole prompts are therefore drawn with
replacement. Each draw gives a ratio of sums over the drawn prompts, in the way that the reported figure is a ratio of
sums over all prompts. The bounds of the interval are percentiles of these ratios.

Source: the percentile interval, Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
"""

from collections.abc import Sequence

import numpy as np

RESAMPLES = 1000
LEVEL = 0.95
_SEED = 0


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float] | None:
    """Returns the bounds of the 95 % interval for sum(numerators) / sum(denominators); None: fewer than two prompts.

    Args: numerators, denominators: one number per prompt; denominators are above 0.
    """
    size = len(numerators)
    if size < 2:
        return None
    drawn = np.random.default_rng(_SEED).integers(size, size=(RESAMPLES, size))
    ratios = np.asarray(numerators)[drawn].sum(axis=1) / np.asarray(denominators)[drawn].sum(axis=1)
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
