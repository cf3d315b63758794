"""Predicts the duration of a forward pass from its rows (one per token) and from the keys that they attend to.

At start-up, passes with empty contexts are measured for a few row counts, which are called points. Real passes have
contexts, they sample tokens, and they share the machine with other load. The cost model is therefore fitted to them:

    seconds = correction(rows) * (a * measured(rows) + b * keys + c * row_keys)

The coefficients a, b and c minimize the squared errors of the recent passes. Errors are relative to a pass's time,
so that a pass delayed by other load has little weight. Passes of one kind do not determine all three coefficients, so
deviations from a = 1 and b = c = 0 are penalized. The correction is the average ratio of a real pass's time to its
fitted time. Each pass updates the corrections of the two points between which its number of rows lies. `PassSize`
explains rows, keys and row_keys.
"""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROW_COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MEASURE_SECONDS = 2.0  # time limit of the measurement; at least two repetitions are made even if they take longer
_MAX_REPETITIONS = 20
_RATE = 0.05  # least weight of the latest pass in a correction
_FADE = 0.995  # each pass multiplies the weight of all earlier passes by this
_OUTLIER = 1.5  # longer passes are clipped to this multiple of the prediction: the machine was probably busy
_DOUBT = 5.0  # weight of a correction of 1 at every point, as a number of passes
_UNIT_KEYS = 1000.0  # b and c are stored as the time of this many keys, relative to an empty pass of one row
# Weights of the penalties on a, b and c. In passes of one row, keys and row_keys are equal, so the weights 1 and 4 make
# c a quarter of b. The value of b is larger because reading keys takes longer than a row's products with the keys.
_PENALTIES = (0.5, 1.0, 4.0)
_DEFAULTS = (1.0, 0.0, 0.0)
_LEAST = (0.8, 0.0, 0.0)  # lower limits of a, b and c; real passes are hardly faster than the fastest measured one

_Three = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class PassSize:
    """What determines the duration of a pass.

    keys: number of keys of all sequences. A key counts once even if several rows of its sequence attend to it, because
        it is read once. Sliding windows are ignored, so the coefficients of a model with such windows are averages.
    row_keys: the keys that each row attends to, summed over the rows.
    """

    rows: int
    keys: int = 0
    row_keys: int = 0

    def __add__(self, other: "PassSize") -> "PassSize":
        return PassSize(self.rows + other.rows, self.keys + other.keys, self.row_keys + other.row_keys)

    @classmethod
    def of_rows(cls, rows: int, context: int) -> "PassSize":
        """Returns the size of `rows` rows of one sequence, the first of which is at position `context`."""
        return cls(rows, context + rows, rows * context + rows * (rows + 1) // 2)


NO_ROWS = PassSize(0)


class CostModel:
    """Predicts times by linear interpolation between the points, and by linear extrapolation after the last point."""

    def __init__(self, row_counts: Sequence[int], seconds: Sequence[float]) -> None:
        if len(row_counts) < 2 or len(row_counts) != len(seconds):
            raise ValueError(f"needs two or more points, got {len(row_counts)} counts and {len(seconds)} times")
        self._rows = list(row_counts)
        self._measured = _rising(seconds)
        self._corrected = list(self._measured)  # measured times, multiplied by the correction of each point
        self._ratios = [1.0] * len(row_counts)  # for each point, the average ratio of real to fitted times
        self._weights = [0.0] * len(row_counts)  # for each point, the number of passes near it, with weights that fade
        self._unit = self._measured[0] / _UNIT_KEYS
        # the normal equations of the fit: [3, 3] and [3]
        self._products = [[weight if i == j else 0.0 for j in range(3)] for i, weight in enumerate(_PENALTIES)]
        self._targets = [weight * default for weight, default in zip(_PENALTIES, _DEFAULTS, strict=True)]
        self._coefficients = list(_DEFAULTS)

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

    def seconds(self, size: PassSize) -> float:
        return self.seconds_of(size.rows, size.keys, size.row_keys)

    def seconds_of(self, rows: int, keys: int, row_keys: int) -> float:
        """Like `seconds`, but creates no `PassSize`, because the draft budget asks for many sizes per step."""
        measured = self._interpolated(self._measured, rows)
        return self._interpolated(self._corrected, rows) / measured * self._fitted(keys, row_keys, measured)

    def key_seconds(self) -> float:
        """Returns the additional time of one more row in a pass, in seconds per key of the row's context."""
        return self._coefficients[2] * self._unit

    def observe(self, size: PassSize, seconds: float) -> None:
        """Corrects the model by the time of a real pass."""
        measured = self._interpolated(self._measured, size.rows)
        clipped = min(seconds, _OUTLIER * self.seconds(size))
        self._fit((measured / seconds, size.keys * self._unit / seconds, size.row_keys * self._unit / seconds))
        ratio = clipped / self._fitted(size.keys, size.row_keys, measured)
        self._weights = [weight * _FADE for weight in self._weights]
        for point, share in self._neighbours(size.rows):
            self._weights[point] += share
            rate = max(_RATE, 1.0 / (1.0 + self._weights[point])) * share
            self._ratios[point] += rate * (ratio - self._ratios[point])
        self._corrected = _rising(
            [
                base * (weight * ratio_here + _DOUBT) / (weight + _DOUBT)
                for base, weight, ratio_here in zip(self._measured, self._weights, self._ratios, strict=True)
            ]
        )

    def _fitted(self, keys: int, row_keys: int, measured: float) -> float:
        a, b, c = self._coefficients
        return a * measured + (b * keys + c * row_keys) * self._unit

    def _fit(self, features: _Three) -> None:
        """Adds a pass to the fit. features: the factors of a, b and c divided by the pass's time.

        The fit is computed without NumPy, whose calls take longer than the few operations on three numbers.
        """
        for i, (penalty, default, feature) in enumerate(zip(_PENALTIES, _DEFAULTS, features, strict=True)):
            row = self._products[i]
            for j, other in enumerate(features):
                row[j] = _FADE * row[j] + feature * other
            row[i] += (1.0 - _FADE) * penalty
            self._targets[i] = _FADE * self._targets[i] + (1.0 - _FADE) * penalty * default + feature
        fitted = _solved(self._products, self._targets)
        self._coefficients = [max(value, least) for value, least in zip(fitted, _LEAST, strict=True)]

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


def _solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> _Three:
    """Returns x of `matrix` x = `right`, for a symmetric, positive definite matrix [3, 3], by Gaussian elimination."""
    (a, b, c), (_, d, e), (_, _, f) = matrix
    x, y, z = right
    d, e, f = d - b * b / a, e - b * c / a, f - c * c / a
    y, z = y - x * b / a, z - x * c / a
    third = (z - y * e / d) / (f - e * e / d)
    second = (y - e * third) / d
    return (x - b * second - c * third) / a, second, third


def _rising(seconds: Sequence[float]) -> list[float]:
    """Makes the times non-decreasing. A larger pass that was measured as faster than a smaller one is noise."""
    rising: list[float] = []
    for value in seconds:
        rising.append(max(value, rising[-1]) if rising else value)
    return rising
