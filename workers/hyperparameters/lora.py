"""Hyperparameters of supervised fine-tuning, which trains a LoRA adapter on the labels of a customer's file."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from workers.hyperparameters.fields import HyperparameterError, check_types, require_one_of, require_range
from workers.hyperparameters.loop import PRECISIONS, LoopParameters

REFUSE, CUT = "refuse", "cut"
LONG_ROWS = (REFUSE, CUT)
MAX_STEPS_BETWEEN_CHECKPOINTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraHyperparameters:
    rank: int = 16
    alpha: int = 32  # the adapter's update is multiplied by alpha / rank
    epochs: int = 3
    max_steps: int | None = None  # training ends after this many steps even if epochs remain
    batch_rows: int = 8  # rows of a step; the last step of an epoch may have fewer
    learning_rate: float = 2e-4
    weight_decay: float = 0.0
    warmup_steps: int = 10
    grad_clip: float = 1.0
    max_row_tokens: int = 2048  # limit for a row's prompt and answer; the model's context is a further limit
    long_rows: str = REFUSE  # what happens with longer rows: the job fails, or the end of the answer is cut off
    packing: bool = True  # whether several short rows share one sequence, in which they do not attend to each other
    evaluate_every: int = 0  # steps from one checkpoint to the next; 0: one epoch
    patience: int = 0  # training stops after this many evaluations without a new best; 0: never
    precision: str = "auto"  # as in `LoopParameters`

    def __post_init__(self) -> None:
        require_range(self, 1, 256, "rank")
        require_range(self, 1, 4096, "alpha")
        require_range(self, 1, 50, "epochs")
        require_range(self, 1, 1024, "batch_rows")
        require_range(self, 16, 1 << 20, "max_row_tokens")
        require_range(self, 0, MAX_STEPS_BETWEEN_CHECKPOINTS, "evaluate_every")
        require_one_of(self, LONG_ROWS, "long_rows")
        require_one_of(self, PRECISIONS, "precision")
        self.loop(steps_per_epoch=1)  # checks the ranges of the other fields

    def loop(self, *, steps_per_epoch: int) -> LoopParameters:
        every = self.evaluate_every or min(steps_per_epoch, MAX_STEPS_BETWEEN_CHECKPOINTS)
        return LoopParameters(
            epochs=self.epochs,
            max_steps=self.max_steps,
            batch_rows=self.batch_rows,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup_steps,
            grad_clip=self.grad_clip,
            evaluate_every=every,
            patience=self.patience,
            precision=self.precision,
        )


def read_lora_hyperparameters(values: Mapping[str, Any]) -> LoraHyperparameters:
    """Raises: HyperparameterError: a name is unknown, or a value has a wrong type or range."""
    names = {f.name for f in fields(LoraHyperparameters)}
    if unknown := sorted(values.keys() - names):
        message = f"there are {', '.join(sorted(names))}; got also {', '.join(unknown):.80}"
        raise HyperparameterError(unknown[0], message, known=False)
    check_types(values, LoraHyperparameters)
    return LoraHyperparameters(**values)
