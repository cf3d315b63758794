"""Hyperparameters of block drafters. The defaults suit a thousand answers of a narrow domain and a small target."""

from dataclasses import dataclass, field
from functools import partial

from workers.hyperparameters.fields import HyperparameterError, require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHyperparameters:
    block_size: int = 5  # rows of a block
    sample_from_anchor: bool = True  # as DSpark: each row guesses the token after its own; else, as DFlash, its own
    causal: bool = False  # within the block, as JetSpec
    num_layers: int = 2
    num_taps: int = 5  # residual streams of the target, evenly spread, the last included
    intermediate_size: int = 0  # of the layers' MLPs; 0: the target's
    markov_rank: int = 64  # 0: no Markov head
    confidence: bool = True  # a head that learns how far the drafter can be trusted
    draft_vocab_size: int = 8192  # at most; only tokens that occur in the answers are kept
    anchors: int = 32  # blocks drawn from a conversation each time it comes up
    soft_target_weight: float = 0.5  # weight of the target's distribution against its chosen token
    decay: float = 4.0  # the loss of depth d counts exp(-d / decay)
    confidence_weight: float = 0.2  # of the confidence head's loss
    # measured as in mtp.py: batches of eight at 1e-3 1.93, of three at 1.5e-3 2.11
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
            raise HyperparameterError("block_size", "block_size must be at least 2 unless the anchor guesses, got 1")
