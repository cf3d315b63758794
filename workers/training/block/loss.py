"""The loss of block drafters, in nats. Each depth contributes its mean over the blocks that have a label there.

    token_d      = (1 - w) * -log p_d(label) + w * -sum_v q_d(v) log p_d(v)
    confidence_d = binary cross-entropy of c_d against sum_v min(p_d(v), q_d(v))
    loss         = sum_d exp(-d / decay) * (token_d + confidence_weight * confidence_d)

p_d and q_d are the drafter's and the target's distribution over the draft vocabulary at depth d. c_d is the probability
of acceptance that the confidence head predicts. If tokens are sampled, a draft token is accepted with probability
sum_v min(p_d, q_d). w is `soft_target_weight`. Shape letters: A blocks, D depths, Vd draft vocabulary.

Source: DFlash, arXiv:2602.06036 (decay); DSpark, arXiv:2607.05147 (confidence).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workers.training.data import IGNORED


@dataclass(frozen=True, slots=True)
class DepthSums:
    """Sums over blocks, each [D]. They are added over batches before any ratio is computed."""

    nats: Tensor  # cross entropy of the labels
    correct: Tensor  # number of blocks whose likeliest token is the label
    count: Tensor  # number of blocks with a label

    def __add__(self, other: "DepthSums") -> "DepthSums":
        return DepthSums(self.nats + other.nats, self.correct + other.correct, self.count + other.count)


def block_loss(
    logits: Tensor, labels: Tensor, target_logits: Tensor, confidence: Tensor | None, *, soft_target_weight: float
) -> tuple[Tensor, Tensor, DepthSums]:
    """Returns the sums of token_d [D] and confidence_d [D] over the blocks with a label at depth d, and `DepthSums`.

    `loss_over_depths` divides the sums by the number of these blocks.

    Args:
        logits, target_logits: [A, D, Vd]; cast to float32 here.
        labels: [A, D] int64, `IGNORED` at depths without a loss.
        confidence: [A, D], the logit of c_d; None if the drafter has no confidence head.
    """
    log_p = functional.log_softmax(logits.float(), dim=-1)
    q = target_logits.float().softmax(-1)
    has_label = labels != IGNORED  # [A, D]
    hard_loss = -log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * has_label
    soft_loss = -(q * log_p).sum(-1) * has_label
    token_loss = ((1.0 - soft_target_weight) * hard_loss + soft_target_weight * soft_loss).sum(0)
    confidence_loss = torch.zeros_like(token_loss)
    if confidence is not None:
        acceptance = torch.minimum(log_p.detach().exp(), q).sum(-1).clamp(0.0, 1.0)
        losses = functional.binary_cross_entropy_with_logits(confidence.float(), acceptance, reduction="none")
        confidence_loss = (losses * has_label).sum(0)
    correct = ((log_p.detach().argmax(-1) == labels) & has_label).sum(0)
    sums = DepthSums(nats=hard_loss.detach().sum(0), correct=correct, count=has_label.sum(0))
    return token_loss, confidence_loss, sums


def loss_over_depths(
    token_loss: Tensor, confidence_loss: Tensor, count: Tensor, *, decay: float, confidence_weight: float
) -> Tensor:
    """Returns the scalar loss. The arguments are results of `block_loss`, added over the conversations of a batch."""
    depths = torch.arange(count.shape[0], device=count.device)
    loss_per_depth = (token_loss + confidence_weight * confidence_loss) / count.clamp(min=1)
    return (loss_per_depth * torch.exp(-depths / decay)).sum()
