"""Sums of losses and of correct predictions, and the validation figures that are computed from them."""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.training.acceptance import Acceptance
from workers.training.loop import Validation


@dataclass(frozen=True, slots=True)
class Sums:
    nats: float  # cross entropy of the labels
    correct: int  # number of rows whose likeliest token is the label
    count: int  # number of rows with a label

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(self.nats + other.nats, self.correct + other.correct, self.count + other.count)


def validation_of(acceptance: Acceptance, batches: Sequence[Sequence[Sums]]) -> Validation:
    """Returns the figures of a validation.

    batches: a list for each batch, with the sums of each depth.
    """
    depths = [sum(sums[1:], start=sums[0]) for sums in zip(*batches, strict=True)]
    return Validation(
        acceptance_length=acceptance.length,
        acceptance_rate_per_position=tuple(acceptance.rate_per_position()),
        accuracy_per_depth=tuple(depth.correct / max(1, depth.count) for depth in depths),
        loss=sum(depth.nats for depth in depths) / max(1, sum(depth.count for depth in depths)),
    )


def batches_of(count: int, size: int) -> list[list[int]]:
    """Splits the indices 0 .. count - 1 into consecutive batches of at most `size`."""
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]
