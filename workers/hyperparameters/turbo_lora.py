"""Hyperparameters of turbo_lora: a LoRA adapter of the target, and Medusa heads that are trained together with it."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class TurboLoraHyperparameters:
    rank: int = 16
    alpha: int = 16  # the adapter's update is multiplied by alpha / rank
    adapted_layers: int = 0  # number of layers with an adapter, counted from the last layer; 0: a quarter of all layers
    num_heads: int = 4
    num_layers: int = 1  # residual blocks per head
    token_input: bool = True  # whether heads read the last token in addition to the hidden state
    draft_vocab_size: int = 8192  # maximum for the heads; see `draft_vocab_fill` in loop.py
    soft_target_weight: float = 0.9  # weight of the adapted model's distribution in the heads' loss
    depth_decay: float = 0.8  # the loss of head i has weight depth_decay ** i
    heads_weight: float = 0.2  # weight of the heads' loss; the adapter's loss has weight 1
    loop: LoopParameters = field(
        default_factory=partial(LoopParameters, epochs=3, batch_rows=2, learning_rate=5e-4, evaluate_every=200)
    )

    def __post_init__(self) -> None:
        require_range(self, 1, 256, "rank")
        require_range(self, 1, 4096, "alpha")
        require_range(self, 0, 1024, "adapted_layers")
        require_range(self, 1, 16, "num_heads", "num_layers")
        require_range(self, 1, 1 << 20, "draft_vocab_size")
        require_range(self, 0.0, 1.0, "soft_target_weight", "depth_decay")
        require_range(self, 0.0, 100.0, "heads_weight")
