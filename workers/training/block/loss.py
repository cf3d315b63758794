"""The loss of block drafters, in nats per token of each depth.

    token_d      = (1 - w) * -log p_d(token) + w * -sum_v q(v) log p_d(v)
    confidence_d = binary cross-entropy of c_d against sum_v min(p_d(v), q(v)), the share of p_d that q agrees with
    loss         = sum_d exp(-d / decay) * (token_d + confidence_weight * confidence_d)

p_d is the drafter's distribution at depth d, q the target's own there, both over the draft vocabulary.

Source: DFlash, arXiv:2602.06036 (decay); DSpark, arXiv:2607.05147 (confidence).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workers.training.data import IGNORED


@dataclass(frozen=True, slots=True)
class DepthSums:
    """Sums over blocks, [D] each; ratios are formed after the last reduction."""

    nats: Tensor  # of the chosen tokens
    correct: Tensor  # blocks whose first guess was right
    count: Tensor  # blocks with a label

    def __add__(self, other: "DepthSums") -> "DepthSums":
        return DepthSums(self.nats + other.nats, self.correct + other.correct, self.count + other.count)


def block_loss(
    logits: Tensor, labels: Tensor, target_logits: Tensor, confidence: Tensor | None, *, soft_target_weight: float
) -> tuple[Tensor, Tensor, DepthSums]:
    """Sums over labelled blocks: of the tokens' loss and the confidence's, [D] each, and the figures.

    Args:
        logits, target_logits: [A, D, Vd]; cast to float32 here.
        labels: [A, D] int64, `IGNORED` where there is nothing to learn.
        confidence: [A, D] before the sigmoid, or None.
    """
    log_p = functional.log_softmax(logits.float(), dim=-1)
    q = target_logits.float().softmax(-1)
    known = labels != IGNORED  # [A, D]
    chosen = -log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * known
    soft = -(q * log_p).sum(-1) * known
    token = ((1.0 - soft_target_weight) * chosen + soft_target_weight * soft).sum(0)
    trust = torch.zeros_like(token)
    if confidence is not None:
        agreed = torch.minimum(log_p.detach().exp(), q).sum(-1).clamp(0.0, 1.0)
        missed = functional.binary_cross_entropy_with_logits(confidence.float(), agreed, reduction="none")
        trust = (missed * known).sum(0)
    correct = ((log_p.detach().argmax(-1) == labels) & known).sum(0)
    return token, trust, DepthSums(nats=chosen.detach().sum(0), correct=correct, count=known.sum(0))


def weighted(token: Tensor, trust: Tensor, count: Tensor, *, decay: float, confidence_weight: float) -> Tensor:
    """The loss from the sums [D] of several conversations."""
    depths = torch.arange(count.shape[0], device=count.device)
    each = (token + confidence_weight * trust) / count.clamp(min=1)
    return (each * torch.exp(-depths / decay)).sum()
