"""Hyperparameters of Medusa heads. The defaults suit a few hundred answers; the comments say what was measured."""

from dataclasses import dataclass
from typing import Any

from workers.training.hyperparameters import read_hyperparameters


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaHyperparameters:
    """Measured with SmolLM2-135M on 144 answers of grade-school problems, judged on 64 others, trees of 15 nodes."""

    num_heads: int = 4
    num_layers: int = 1  # ResBlocks per head; two: 2.14 -> 2.21 for 1.8 times the time
    tied: bool = True  # share the target's lm_head; False gives each head its own copy to train
    token_input: bool = True  # heads read the last token beside the hidden state that chose it: 2.16 -> 2.39
    draft_vocab_size: int = 8192  # at most; only tokens that the answers use are kept
    soft_target_weight: float = (
        0.9  # of the target's own distribution against its chosen token: 2.10 without, 2.16 with
    )
    depth_decay: float = 0.8  # loss of head i counts depth_decay ** i; Medusa's own choice
    dropout: float = 0.0  # of the hidden state
    epochs: int = 8  # acceptance was level from the sixth on
    max_steps: int | None = None  # ends earlier than the epochs would
    max_seconds: float | None = None  # ends after this time, the schedule stretched to fit; not reproducible to the bit
    batch_rows: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 20
    grad_clip: float = 1.0
    validation_fraction: float = 0.1
    evaluate_every: int = 100  # steps
    patience: int = 3  # evaluations without a longer acceptance before training stops; 0 never stops early
    draft_budget: int = 15  # nodes of the tree with which acceptance is simulated: with the root one tile of 16 rows
    cache_memory_bytes: int = 4 << 30  # hidden states beyond this go to a file
    precision: str = "auto"  # of the heads' products: auto is bfloat16 on CUDA, float32 elsewhere

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_layers", "draft_vocab_size", "epochs", "batch_rows", "evaluate_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_steps", "max_seconds"):
            if (limit := getattr(self, name)) is not None and limit <= 0:
                raise ValueError(f"{name} must be above 0 or null, got {limit}")
        for name in ("soft_target_weight", "depth_decay"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} must be in 0..1, got {getattr(self, name)}")
        for name in ("dropout", "validation_fraction"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("learning_rate", "grad_clip"):
            if getattr(self, name) <= 0.0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("weight_decay", "warmup_steps", "patience", "cache_memory_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.num_heads > 16:
            raise ValueError(f"num_heads must be at most 16, got {self.num_heads}")
        if not 1 <= self.draft_budget <= 64:
            raise ValueError(f"draft_budget must be in 1..64, got {self.draft_budget}")
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise ValueError(f"precision must be auto, float32 or bfloat16, got {self.precision!r}")

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "MedusaHyperparameters":
        """Raises: UserConfigError: an unknown name, a value of another type or out of range."""
        return read_hyperparameters(cls, values, method="medusa")
