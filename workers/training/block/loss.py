"""The loss of block drafters, in nats per token of each depth.

    token_d      = (1 - w) * -log p_d(label) + w * -sum_v q_d(v) log p_d(v)
    confidence_d = binary cross-entropy of c_d against sum_v min(p_d(v), q_d(v)), the acceptance rate when sampling
    loss         = sum_d exp(-d / decay) * (token_d + confidence_weight * confidence_d)

p_d and q_d are the drafter's and the target's distribution at depth d, over the draft vocabulary; c_d is the confidence
head's output; w is `soft_target_weight`. Shape letters: A blocks, D depths, Vd draft vocabulary.

Source: DFlash, arXiv:2602.06036 (decay); DSpark, arXiv:2607.05147 (confidence).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workers.training.data import IGNORED


@dataclass(frozen=True, slots=True)
class DepthSums:
    """Sums over blocks, [D] each; ratios are computed only from the final sums."""

    nats: Tensor  # cross entropy of the labels
    correct: Tensor  # blocks whose likeliest token was right
    count: Tensor  # blocks with a label

    def __add__(self, other: "DepthSums") -> "DepthSums":
        return DepthSums(self.nats + other.nats, self.correct + other.correct, self.count + other.count)


def block_loss(
    logits: Tensor, labels: Tensor, target_logits: Tensor, confidence: Tensor | None, *, soft_target_weight: float
) -> tuple[Tensor, Tensor, DepthSums]:
    """Returns three sums over blocks with a label: token_d [D], confidence_d [D], and the figures.

    Args:
        logits, target_logits: [A, D, Vd]; cast to float32 here.
        labels: [A, D] int64, `IGNORED` where there is nothing to learn.
        confidence: [A, D] before the sigmoid; None: there is no confidence head.
    """
    log_p = functional.log_softmax(logits.float(), dim=-1)
    q = target_logits.float().softmax(-1)
    known = labels != IGNORED  # [A, D]
    hard_loss = -log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * known
    soft_loss = -(q * log_p).sum(-1) * known
    token_loss = ((1.0 - soft_target_weight) * hard_loss + soft_target_weight * soft_loss).sum(0)
    confidence_loss = torch.zeros_like(token_loss)
    if confidence is not None:
        acceptance = torch.minimum(log_p.detach().exp(), q).sum(-1).clamp(0.0, 1.0)
        losses = functional.binary_cross_entropy_with_logits(confidence.float(), acceptance, reduction="none")
        confidence_loss = (losses * known).sum(0)
    correct = ((log_p.detach().argmax(-1) == labels) & known).sum(0)
    return token_loss, confidence_loss, DepthSums(nats=hard_loss.detach().sum(0), correct=correct, count=known.sum(0))


def weighted(
    token_loss: Tensor, confidence_loss: Tensor, count: Tensor, *, decay: float, confidence_weight: float
) -> Tensor:
    """Returns the loss from the sums [D] over several conversations."""
    depths = torch.arange(count.shape[0], device=count.device)
    each = (token_loss + confidence_weight * confidence_loss) / count.clamp(min=1)
    return (each * torch.exp(-depths / decay)).sum()
