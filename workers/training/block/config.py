"""Hyperparameters of block drafters. The defaults suit a thousand answers of a narrow domain and a small target."""

from dataclasses import dataclass
from typing import Any

from workers.training.hyperparameters import read_hyperparameters, require


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
    draft_vocab_size: int = 8192  # at most; only tokens that the answers use are kept
    anchors: int = 32  # blocks drawn from a conversation each time it comes up
    soft_target_weight: float = 0.5  # of the target's own distribution against its chosen token
    decay: float = 4.0  # the loss of depth d counts exp(-d / decay)
    confidence_weight: float = 0.2  # of the confidence head's loss
    epochs: int = 6
    max_steps: int | None = None  # ends earlier than the epochs would
    max_seconds: float | None = None  # ends after this time, the schedule stretched to fit; not reproducible to the bit
    batch_rows: int = 8  # conversations
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 20
    grad_clip: float = 1.0
    validation_fraction: float = 0.05
    evaluate_every: int = 100  # steps
    patience: int = 3  # evaluations without a longer acceptance before training stops; 0 never stops early
    draft_budget: int = 15  # nodes of the tree with which acceptance is simulated
    cache_memory_bytes: int = 4 << 30  # taps beyond this go to a file
    precision: str = "auto"  # of the products: auto is bfloat16 on CUDA, float32 elsewhere

    def __post_init__(self) -> None:
        counts = ("block_size", "num_layers", "num_taps", "draft_vocab_size", "anchors", "epochs", "batch_rows")
        require(self, (*counts, "evaluate_every"), lambda value: value >= 1, "at least 1")
        require(self, ("max_steps", "max_seconds"), lambda value: value > 0, "above 0 or null")
        require(self, ("soft_target_weight",), lambda value: 0.0 <= value <= 1.0, "in 0..1")
        require(self, ("validation_fraction",), lambda value: 0.0 <= value < 1.0, "in [0, 1)")
        require(self, ("learning_rate", "grad_clip", "decay"), lambda value: value > 0.0, "above 0")
        others = ("intermediate_size", "markov_rank", "confidence_weight", "weight_decay", "warmup_steps", "patience")
        require(self, (*others, "cache_memory_bytes"), lambda value: value >= 0, "0 or more")
        require(self, ("block_size", "num_layers"), lambda value: value <= 16, "at most 16")
        if self.block_size == 1 and not self.sample_from_anchor:
            raise ValueError("block_size must be at least 2 unless the anchor guesses, got 1")
        require(self, ("draft_budget",), lambda value: 1 <= value <= 64, "in 1..64")
        precisions = ("auto", "float32", "bfloat16")
        require(self, ("precision",), precisions.__contains__, f"one of {', '.join(precisions)}")

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "BlockHyperparameters":
        """Raises: UserConfigError: an unknown name, a value of another type or out of range."""
        return read_hyperparameters(cls, values, method="block")
