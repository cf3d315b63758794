"""A test case of a kernel with inputs of one shape, and the functions that check the kernel with it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from benchmarks.gpu.peak_rates import Work
from benchmarks.gpu.poison import Poisoned

Outputs = Sequence[Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    operation: str
    shape: str  # description of the shape
    run: Callable[[], Outputs]
    error: Callable[[Outputs], float]  # returns the difference of the outputs from the reference's; NaN never passes
    tolerance: float
    work: Work
    rivals: Mapping[str, Callable[[], object]] = field(default_factory=dict)  # implementations that are only timed

    @property
    def name(self) -> str:
        return f"{self.operation} {self.shape}"


@dataclass(frozen=True, slots=True)
class Check:
    error: float
    tolerance: float
    damage: list[str]  # descriptions of out-of-bounds writes (poison.py)

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance and not self.damage  # a comparison with NaN is false


def check(case: Case) -> Check:
    """Runs the case once in poisoned memory."""
    poisoned = Poisoned()
    with poisoned:
        outputs = case.run()
    return Check(case.error(outputs), case.tolerance, poisoned.damage())


def relative_error(exact: Callable[[], Outputs]) -> Callable[[Outputs], float]:
    """Returns a function that computes ||out - exact|| / ||exact|| for each output and returns the largest.

    exact: computes the exact outputs, in float64.
    """

    def error(outputs: Outputs) -> float:
        errors = [
            (out.double() - expected).norm() / expected.norm().clamp(min=1e-300)
            for out, expected in zip(outputs, exact(), strict=True)
        ]
        return float(torch.stack(errors).max())  # torch's max, unlike Python's, returns NaN if any error is NaN

    return error


def number_different(exact: Callable[[], Outputs]) -> Callable[[Outputs], float]:
    """Returns a function that counts the integers that differ from the reference."""

    def error(outputs: Outputs) -> float:
        return float(sum(int((out != expected).sum()) for out, expected in zip(outputs, exact(), strict=True)))

    return error


@dataclass(frozen=True, slots=True)
class RowInvariance:
    """The claim that the bits of each output row of an operation do not depend on the other rows of the batch.

    run: runs the operation on only the given range of rows and returns its outputs.
    """

    operation: str
    num_rows: int
    run: Callable[[slice], Outputs]


def different_windows(claim: RowInvariance, windows: Sequence[slice]) -> list[str]:
    """Returns the windows (ranges of rows) whose rows have different bits when the window runs alone."""
    all_rows = [output.clone() for output in claim.run(slice(0, claim.num_rows))]
    different = []
    for window in windows:
        window_rows = claim.run(window)
        if not all(torch.equal(part, whole[window]) for part, whole in zip(window_rows, all_rows, strict=True)):
            different.append(f"{window.start}:{window.stop}")
    return different


def windows(num_rows: int) -> list[slice]:
    """Returns the first 1, 2, ... rows, the last 1, 2, ... rows, and each single row."""
    first = [slice(0, stop) for stop in range(1, num_rows)]
    last = [slice(start, num_rows) for start in range(1, num_rows)]
    return first + last + [slice(row, row + 1) for row in range(num_rows)]
