"""Predicts the duration of a forward pass from its number of rows (one row per token).

At start-up, passes with a few numbers of rows (called points) are measured with empty contexts. Real passes are slower
because of longer contexts, sampling and other load. Each real pass is compared with the measurement, and the ratio is
recorded at the two points nearest to its number of rows. Points without recent passes use the average ratio.
"""

import bisect
from collections.abc import Callable, Sequence

ROW_COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MEASURE_SECONDS = 2.0  # time limit of the measurement, which the first two repetitions may exceed
_MAX_REPETITIONS = 20
_RATE = 0.05  # weight of the latest pass in a moving average
_FADE = 0.995  # each pass multiplies the weight of every point by this
_OUTLIER = 1.5  # longer passes are clipped to this multiple of the prediction, since the machine was probably busy
_DOUBT = 5.0  # weight of the average ratio at every point, as a number of passes


class CostModel:
    """Interpolates linearly between the points, and extrapolates linearly after the last one."""

    def __init__(self, row_counts: Sequence[int], seconds: Sequence[float]) -> None:
        if len(row_counts) < 2 or len(row_counts) != len(seconds):
            raise ValueError(f"needs two or more points, got {len(row_counts)} counts and {len(seconds)} times")
        self._rows = list(row_counts)
        self._measured = _rising(seconds)
        self._current = list(self._measured)
        self._ratio = 1.0  # average over all real passes of the time relative to the measurement
        self._ratios = [1.0] * len(row_counts)  # the same average for each point
        self._weights = [0.0] * len(row_counts)  # for each point, the faded number of passes near it

    @classmethod
    def measure(cls, run: Callable[[int], float], row_counts: Sequence[int] = ROW_COUNTS) -> "CostModel":
        """Takes the fastest of several passes for each row count; `run(rows)` makes one pass and returns its seconds.

        Each repetition measures all counts in turn, so that noise affects all counts alike.
        """
        run(row_counts[-1])  # warm-up
        runs = [[run(rows) for rows in row_counts] for _ in range(2)]
        while sum(map(sum, runs)) + sum(runs[-1]) < _MEASURE_SECONDS and len(runs) < _MAX_REPETITIONS:
            runs.append([run(rows) for rows in row_counts])
        return cls(row_counts, [min(times) for times in zip(*runs, strict=True)])

    def seconds(self, rows: int) -> float:
        return self._interpolated(self._current, rows)

    def observe(self, rows: int, seconds: float) -> None:
        """Corrects the model by the time of a real pass."""
        ratio = min(seconds, _OUTLIER * self.seconds(rows)) / self._interpolated(self._measured, rows)
        self._ratio += _RATE * (ratio - self._ratio)
        self._weights = [weight * _FADE for weight in self._weights]
        for point, share in self._neighbours(rows):
            self._weights[point] += share
            rate = max(_RATE, 1.0 / (1.0 + self._weights[point])) * share
            self._ratios[point] += rate * (ratio - self._ratios[point])
        corrected = [
            base * (weight * ratio_here + _DOUBT * self._ratio) / (weight + _DOUBT)
            for base, weight, ratio_here in zip(self._measured, self._weights, self._ratios, strict=True)
        ]
        self._current = _rising(corrected)

    def _right(self, rows: int) -> int:
        """Returns the index of the larger of the two points between which `rows` is interpolated."""
        return min(max(bisect.bisect_left(self._rows, rows), 1), len(self._rows) - 1)

    def _neighbours(self, rows: int) -> tuple[tuple[int, float], tuple[int, float]]:
        """Returns the indices of the two nearest points and their interpolation weights in 0..1."""
        right = self._right(rows)
        x0, x1 = self._rows[right - 1], self._rows[right]
        share = min(1.0, max(0.0, (rows - x0) / (x1 - x0)))
        return (right - 1, 1.0 - share), (right, share)

    def _interpolated(self, seconds: Sequence[float], rows: int) -> float:
        right = self._right(rows)
        x0, x1, y0, y1 = self._rows[right - 1], self._rows[right], seconds[right - 1], seconds[right]
        return max(y0 + (y1 - y0) * (rows - x0) / (x1 - x0), seconds[0])


def _rising(seconds: Sequence[float]) -> list[float]:
    """Makes the times non-decreasing, because a larger pass that was measured as faster is noise."""
    rising: list[float] = []
    for value in seconds:
        rising.append(max(value, rising[-1]) if rising else value)
    return rising
