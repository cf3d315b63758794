"""Hyperparameters of the kind `auto`, which trains a speculator of each candidate kind and keeps the fastest."""

from dataclasses import dataclass, field

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoHyperparameters:
    measured_answers: int = 16  # number of held-out prompts that each trained speculator answers to measure its speed
    measured_concurrency: int = 1  # number of these prompts that are answered at a time
    # Given values of the loop apply to each candidate, except `max_seconds`, which limits all candidates together.
    # Candidates use the defaults of their kind for all values that are not given.
    loop: LoopParameters = field(default_factory=LoopParameters)

    def __post_init__(self) -> None:
        require_range(self, 1, 256, "measured_answers")
        require_range(self, 1, 64, "measured_concurrency")
