"""Hyperparameters of Medusa heads. The defaults suit a few hundred answers."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaHyperparameters:
    """Some comments give the acceptance length without and with the setting in the form 2.10 -> 2.16.

    The heads were trained for SmolLM2-135M on 144 answers to grade-school problems. The lengths were measured on 64
    held-out answers, with draft trees of 15 nodes.
    """

    num_heads: int = 4
    num_layers: int = 1  # residual blocks per head; 2 instead of 1: 2.14 -> 2.21, but training takes 1.8 times as long
    tied: bool = True  # share the target's lm_head; False gives each head its own copy to train
    token_input: bool = True  # whether heads read the last token in addition to the hidden state: 2.16 -> 2.39
    draft_vocab_size: int = 8192  # maximum; see `draft_vocab_fill` in loop.py
    prompt_tokens: bool = True  # on CPUs, draft also the tokens of a request's prompt; see benchmarks/results/training
    soft_target_weight: float = 0.9  # weight of the target's distribution; the rest is for the label: 2.10 -> 2.16
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
