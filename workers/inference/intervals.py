"""Confidence intervals by the bootstrap over prompts.

Prompts are the independent samples, because the passes of one answer are alike. Whole prompts are therefore drawn with
replacement. The reported figure is a ratio of sums over all prompts, and each draw gives the ratio of the same sums
over the drawn prompts. The bounds of the interval are percentiles of these ratios.

Two arms are compared on the same draws, because their times depend on the same prompts: a long answer takes long in
both arms.

Source: the percentile interval, Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
LEVEL = 0.95
_SEED = 0


@dataclass(frozen=True, slots=True)
class Run:
    """One run of an arm over all prompts. Both lists have one number per prompt, in the same order in every run."""

    tokens: Sequence[int]
    seconds: Sequence[float]  # each prompt's share of the run's time


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float] | None:
    """Returns the bounds of the 95 % interval for sum(numerators) / sum(denominators).

    Returns None if there are fewer than two prompts.

    Args: numerators, denominators: one number per prompt; denominators are above 0.
    """
    if len(numerators) < 2:
        return None
    return _bounds(_drawn_sums(numerators) / _drawn_sums(denominators))


def drawn_speeds(runs: Sequence[Run]) -> NDArray[np.float64] | None:
    """Returns the speed of an arm in tokens per second for each draw: the median over the arm's runs, like the
    reported speed.

    Returns None if there are fewer than two prompts.
    """
    if len(runs[0].tokens) < 2:
        return None
    speeds = [_drawn_sums(run.tokens) / _drawn_sums(run.seconds) for run in runs]
    return np.asarray(np.median(speeds, axis=0), dtype=np.float64)


def speed_ratio_interval(
    speeds: NDArray[np.float64] | None, baseline: NDArray[np.float64] | None
) -> tuple[float, float] | None:
    """Returns the bounds of the 95 % interval for the ratio of two arms' speeds, which `drawn_speeds` returned."""
    return None if speeds is None or baseline is None else _bounds(speeds / baseline)


def _drawn_sums(values: Sequence[float]) -> NDArray[Any]:
    """Returns the sum over the drawn prompts, for each draw. Lists of the same length get the same draws."""
    size = len(values)
    drawn = np.random.default_rng(_SEED).integers(size, size=(RESAMPLES, size))
    sums: NDArray[Any] = np.asarray(values)[drawn].sum(axis=1)
    return sums


def _bounds(ratios: NDArray[Any]) -> tuple[float, float]:
    low, high = np.quantile(ratios, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
