"""Hyperparameters of EAGLE-3. The defaults suit some hundred answers of a narrow domain or more, and a small target."""

from dataclasses import dataclass
from typing import Any

from workers.training.hyperparameters import read_hyperparameters, require


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Hyperparameters:
    steps: int = 3  # of the unroll: depths the drafter is trained for; it is served deeper
    intermediate_size: int = 0  # of the layer's MLP; 0: the target's
    draft_vocab_size: int = 8192  # at most; only tokens that the answers use are kept
    fc_norm: bool = True  # a norm per tap: small targets have residual streams of very different size
    norm_output: bool = True  # feed back what was normed: depths beyond the trained ones stay stable
    soft_target_weight: float = 0.5  # of the target's own distribution against its chosen token
    step_decay: float = 0.9  # loss of step s counts step_decay ** s
    epochs: int = 8
    max_steps: int | None = None  # ends earlier than the epochs would
    max_seconds: float | None = None  # ends after this time, the schedule stretched to fit; not reproducible to the bit
    batch_rows: int = 4  # conversations; many small steps learn more in a given time than few large ones
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 20
    grad_clip: float = 1.0
    validation_fraction: float = 0.05
    evaluate_every: int = 200  # steps
    patience: int = 3  # evaluations without a longer acceptance before training stops; 0 never stops early
    draft_budget: int = 15  # nodes of the tree with which acceptance is simulated
    cache_memory_bytes: int = 4 << 30  # taps beyond this go to a file
    precision: str = "auto"  # auto: bfloat16 on CUDA, else float32; with AVX512-BF16 bfloat16 takes 0.6 of the time

    def __post_init__(self) -> None:
        counts = ("steps", "draft_vocab_size", "epochs", "batch_rows", "evaluate_every")
        require(self, counts, lambda value: value >= 1, "at least 1")
        require(self, ("max_steps", "max_seconds"), lambda value: value > 0, "above 0 or null")
        require(self, ("soft_target_weight", "step_decay"), lambda value: 0.0 <= value <= 1.0, "in 0..1")
        require(self, ("validation_fraction",), lambda value: 0.0 <= value < 1.0, "in [0, 1)")
        require(self, ("learning_rate", "grad_clip"), lambda value: value > 0.0, "above 0")
        others = ("intermediate_size", "weight_decay", "warmup_steps", "patience", "cache_memory_bytes")
        require(self, others, lambda value: value >= 0, "0 or more")
        require(self, ("steps",), lambda value: value <= 8, "at most 8")
        require(self, ("draft_budget",), lambda value: 1 <= value <= 64, "in 1..64")
        precisions = ("auto", "float32", "bfloat16")
        require(self, ("precision",), precisions.__contains__, f"one of {', '.join(precisions)}")

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "Eagle3Hyperparameters":
        """Raises: UserConfigError: an unknown name, a value of another type or out of range."""
        return read_hyperparameters(cls, values, method="eagle3")
