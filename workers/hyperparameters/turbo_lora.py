"""Hyperparameters of a LoRA adapter of the target and the Medusa heads trained with it."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class TurboLoraHyperparameters:
    rank: int = 16
    alpha: int = 16  # the update counts alpha / rank
    adapted_layers: int = 0  # the target's last so many; 0: a quarter. The layers below cost nothing
    num_heads: int = 4
    num_layers: int = 1  # ResBlocks per head
    token_input: bool = True  # heads read the last token beside the hidden state that chose it
    draft_vocab_size: int = 8192  # of the heads, at most; only tokens that the answers use are kept
    soft_target_weight: float = 0.9  # in the heads' loss, of the adapted model's own distribution
    depth_decay: float = 0.8  # loss of head i counts depth_decay ** i
    heads_weight: float = 0.2  # of the heads' loss against the adapter's
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
