"""Hyperparameters of Medusa heads. The defaults suit a few hundred answers."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaHyperparameters:
    """A comment such as "acceptance length 2.10 -> 2.16" gives the length without and with the setting.

    The heads were trained for SmolLM2-135M on 144 answers to grade-school problems. The lengths were measured on 64
    held-out answers, with draft trees of 15 nodes.
    """

    num_heads: int = 4
    # Residual blocks per head. With 2 instead of 1: acceptance length 2.14 -> 2.21, and 1.8 times the training time.
    num_layers: int = 1
    tied: bool = True  # share the target's lm_head; False gives each head its own copy to train
    # Whether heads read the last token in addition to the hidden state. Acceptance length 2.16 -> 2.39.
    token_input: bool = True
    draft_vocab_size: int = 8192  # maximum; see `draft_vocab_fill` in loop.py
    # On CPUs, the drafter can also propose tokens outside the draft vocabulary if the request's prompt contains them
    # (benchmarks/results/training/vocabulary.md).
    prompt_tokens: bool = True
    # Weight of the target's distribution in the loss; the label has the rest. Acceptance length 2.10 -> 2.16.
    soft_target_weight: float = 0.9
    depth_decay: float = 0.8  # the loss of head i has weight depth_decay ** i; the Medusa paper uses 0.8
    dropout: float = 0.0  # applied to the hidden state
    # 8 epochs are enough: the acceptance length did not increase after the sixth epoch
    loop: LoopParameters = field(
        default_factory=partial(LoopParameters, batch_rows=256, validation_fraction=0.1, evaluate_every=100)
    )

    def __post_init__(self) -> None:
        require_range(self, 1, 16, "num_heads", "num_layers")
        require_range(self, 1, 1 << 20, "draft_vocab_size")
        require_range(self, 0.0, 1.0, "soft_target_weight", "depth_decay")
        require_range(self, 0.0, 0.9, "dropout")
