"""Hyperparameters of EAGLE-3. The defaults suit some hundred answers of a narrow domain or more, and a small target."""

from dataclasses import dataclass, field

from workers.hyperparameters.fields import require_range
from workers.hyperparameters.loop import LoopParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3Hyperparameters:
    steps: int = 3  # of the unroll: depths the drafter is trained for; it is served deeper
    intermediate_size: int = 0  # of the layer's MLP; 0: as in the target
    draft_vocab_size: int = 8192  # at most; only tokens that occur in the answers are kept
    fc_norm: bool = True  # a norm per tap: small targets have residual streams of very different size
    norm_output: bool = True  # feed back what was normed: depths beyond the trained ones stay stable
    soft_target_weight: float = 0.5  # weight of the target's distribution against its chosen token
    step_decay: float = 0.9  # loss of step s counts step_decay ** s
    # many small steps learn more in a given time than few large ones
    loop: LoopParameters = field(default_factory=LoopParameters)

    def __post_init__(self) -> None:
        require_range(self, 1, 8, "steps")
        require_range(self, 0, 65_536, "intermediate_size")
        require_range(self, 1, 1 << 20, "draft_vocab_size")
        require_range(self, 0.0, 1.0, "soft_target_weight", "step_decay")
