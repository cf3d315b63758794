"""Hyperparameters that all kinds of speculators have in common."""

from dataclasses import dataclass

from workers.hyperparameters.fields import require_one_of, require_range

OPTIMIZERS = ("adamw", "muon")
PRECISIONS = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParameters:
    epochs: int = 8
    max_steps: int | None = None  # training ends after this many steps even if epochs remain
    # Training ends after this time. The learning rate then depends on the elapsed time, so no two runs are equal.
    max_seconds: float | None = None
    batch_rows: int = 4  # number of conversations in a batch, or of answer tokens for medusa
    accumulate: int = 1  # batches that make up a step
    optimizer: str = "adamw"  # "muon" uses Muon for the matrices of hidden layers, and AdamW for other parameters
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warmup_steps: int = 20
    grad_clip: float = 1.0
    validation_fraction: float = 0.05
    evaluate_every: int = 200  # steps
    patience: int = 3  # training stops after this many evaluations without a new best; 0: never
    draft_budget: int = 15  # maximum number of draft tokens per simulated pass; with the root, they fill a tile of 16
    cache_memory_bytes: int = 4 << 30  # the target's hidden states are stored in files if they need more bytes
    precision: str = "auto"  # of matrix products; auto: bfloat16 on CUDA and on CPUs that are faster with it
    # The draft vocabulary contains the tokens of the answers. True: it is filled up to `draft_vocab_size`, first with
    # tokens of the prompts, then with tokens that the target finds likely. Training steps then take longer, and
    # acceptance was not higher (benchmarks/results/training/vocabulary.md).
    draft_vocab_fill: bool = False
    export_as: str | None = None  # the export format that the speculator must support (docs/exports.md)

    def __post_init__(self) -> None:
        require_range(self, 1, 10_000, "epochs", "accumulate", "evaluate_every")
        require_range(self, 1, 65_536, "batch_rows")
        require_range(self, 1, 100_000_000, "max_steps")
        require_range(self, 0.1, 2_592_000, "max_seconds")  # thirty days
        require_range(self, 1e-9, 1.0, "learning_rate")
        require_range(self, 0.0, 1.0, "weight_decay")
        require_range(self, 1e-6, 1e6, "grad_clip")
        require_range(self, 0, 1_000_000, "warmup_steps", "patience")
        require_range(self, 0.0, 0.9, "validation_fraction")
        require_range(self, 1, 64, "draft_budget")
        require_range(self, 0, 1 << 50, "cache_memory_bytes")
        require_one_of(self, OPTIMIZERS, "optimizer")
        require_one_of(self, PRECISIONS, "precision")
