"""Hyperparameters of draft models: the target with layers removed."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelHyperparameters:
    num_layers: int = 0  # number of the target's layers that are kept, evenly spread; 0: an eighth of them
    draft_vocab_size: int = 8192  # maximum; see `draft_vocab_fill` in loop.py
    soft_target_weight: float = 0.5  # weight of the target's distribution in the loss; the rest is for the label
    # Acceptance length, measured as in mtp.py: 1.93 with batch_rows 2 and the default learning_rate of 1e-3; 1.80 with
    # batch_rows 4 and learning_rate 5e-4.
    loop: LoopParameters = field(default_factory=partial(LoopParameters, batch_rows=2))

    def __post_init__(self) -> None:
        require_range(self, 0, 1024, "num_layers")
        require_range(self, 1, 1 << 20, "draft_vocab_size")
        require_range(self, 0.0, 1.0, "soft_target_weight")
