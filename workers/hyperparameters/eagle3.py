"""Hyperparameters of EAGLE-3. The defaults are for a small target and at least some hundred answers of one domain."""

from dataclasses import dataclass, field

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Hyperparameters:
    steps: int = 6  # number of draft depths that are trained; the served drafter may draft deeper
    intermediate_size: int = 0  # size of the layer's MLP; 0: as in the target
    draft_vocab_size: int = 8192  # maximum; see `draft_vocab_fill` in loop.py
    # On CPUs, the drafter can also propose tokens outside the draft vocabulary if the request's prompt contains them.
    # This is off by default, because it lowered the acceptance length after 541 training steps
    # (benchmarks/results/training/vocabulary.md).
    prompt_tokens: bool = False
    fc_norm: bool = True  # normalize each hidden state that is read, because magnitudes differ between layers
    norm_output: bool = True  # pass the normalized output to the next depth, which keeps depths beyond `steps` stable
    soft_target_weight: float = 0.5  # weight of the target's distribution in the loss; the rest is for the label
    step_decay: float = 0.9  # the loss of step s has weight step_decay ** s
    anchor_share: float = 0.7  # step s is trained on the part anchor_share ** s of the answers' positions
    # The default batch_rows is small: for the same training time, many small steps learn more than a few large ones.
    loop: LoopParameters = field(default_factory=LoopParameters)

    def __post_init__(self) -> None:
        require_range(self, 1, 8, "steps")
        require_range(self, 0, 65_536, "intermediate_size")
        require_range(self, 1, 1 << 20, "draft_vocab_size")
        require_range(self, 0.0, 1.0, "soft_target_weight", "step_decay")
        require_range(self, 0.1, 1.0, "anchor_share")
