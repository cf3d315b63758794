"""Hyperparameters of multi-token-prediction modules."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpHyperparameters:
    steps: int = 4  # how often the module runs on its own output, in training and when served
    intermediate_size: int = 0  # of the layer's MLP; 0: as in the target
    draft_vocab_size: int = 8192  # at most; only tokens that occur in the answers are kept
    soft_target_weight: float = 0.5  # weight of the target's distribution against its chosen token
    step_decay: float = 0.9  # loss of step s counts step_decay ** s
    # Measured with SmolLM2-135M on 300 answers to GSM8K questions, two processor minutes, trees of 31 nodes: batches of
    # four at 1e-3 2.19, of two 2.25, at 2e-3 2.28.
    loop: LoopParameters = field(default_factory=partial(LoopParameters, batch_rows=2, learning_rate=2e-3))

    def __post_init__(self) -> None:
        require_range(self, 1, 8, "steps")
        require_range(self, 0, 65_536, "intermediate_size")
        require_range(self, 1, 1 << 20, "draft_vocab_size")
        require_range(self, 0.0, 1.0, "soft_target_weight", "step_decay")
