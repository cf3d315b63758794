"""Hyperparameters of block drafters. The defaults are for a small target and about a thousand answers of one domain."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import HyperparameterError, require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHyperparameters:
    block_size: int = 5  # input tokens of a block: the anchor (the last token of the sequence) and mask tokens
    # True: each row of a block predicts the next token, as in DSpark. False: the row of each mask token predicts the
    # token at its own position, and the anchor's row predicts nothing, as in DFlash.
    sample_from_anchor: bool = True
    causal: bool = False  # whether attention within the block is causal, as in JetSpec
    num_layers: int = 2
    num_taps: int = 5  # intermediate hidden states of the target, at evenly spread layers up to the last
    intermediate_size: int = 0  # size of the layers' MLPs; 0: as in the target
    markov_rank: int = 64  # 0: no Markov head
    confidence: bool = True  # a head that predicts the probability that a draft token is accepted
    draft_vocab_size: int = 8192  # maximum; see `draft_vocab_fill` in loop.py
    anchors: int = 32  # maximum number of random anchors, and therefore of blocks, per conversation and epoch
    soft_target_weight: float = 0.5  # weight of the target's distribution in the loss; the rest is for the label
    decay: float = 4.0  # the loss at depth d has weight exp(-d / decay)
    confidence_weight: float = 0.2  # weight of the confidence head's loss
    # Acceptance length, measured as in mtp.py: 1.93 with batch_rows 8 and learning_rate 1e-3, 2.11 with 3 and 1.5e-3.
    loop: LoopParameters = field(
        default_factory=partial(LoopParameters, epochs=6, batch_rows=3, learning_rate=1.5e-3, evaluate_every=250)
    )

    def __post_init__(self) -> None:
        require_range(self, 1, 16, "block_size", "num_layers", "num_taps")
        require_range(self, 0, 65_536, "intermediate_size")
        require_range(self, 0, 4096, "markov_rank")
        require_range(self, 1, 4096, "anchors")
        require_range(self, 1, 1 << 20, "draft_vocab_size")
        require_range(self, 0.0, 1.0, "soft_target_weight")
        require_range(self, 0.01, 1e6, "decay")
        require_range(self, 0.0, 100.0, "confidence_weight")
        if self.block_size == 1 and not self.sample_from_anchor:
            raise HyperparameterError("block_size", "block_size must be at least 2 without sample_from_anchor, got 1")
