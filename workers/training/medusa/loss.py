"""The loss of Medusa heads, in nats per token of each depth.

    loss_k = (1 - w) * -log p_k(token) + w * -sum_v q(v) log p_k(v)
    loss   = sum_k depth_decay**k * loss_k

p_k is head k's distribution over the draft vocabulary and q the target's own at that position, cut to the same
vocabulary: it tells which other tokens were likely, which a tree of several candidates can use.
Source: Cai et al. 2024, arXiv:2401.10774 (decay, self-distillation).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workers.training.data import IGNORED


@dataclass(frozen=True, slots=True)
class DepthSums:
    """Sums over rows, [K] each; ratios are formed after the last reduction."""

    nats: Tensor  # of the chosen tokens
    correct: Tensor  # rows whose first guess was right
    count: Tensor  # rows with a label


def medusa_loss(
    logits: Tensor, labels: Tensor, target_logits: Tensor | None, *, soft_target_weight: float, depth_decay: float
) -> tuple[Tensor, DepthSums]:
    """The mean over labelled rows of each depth, weighted by depth.

    Args:
        logits: [R, K, Vd]; cast to float32 here.
        labels: [R, K] int64, `IGNORED` where there is nothing to learn.
        target_logits: [R, K, Vd], or None where `soft_target_weight` is 0.
    """
    log_p = functional.log_softmax(logits.float(), dim=-1)  # [R, K, Vd]
    known = labels != IGNORED  # [R, K]
    chosen = -log_p.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1) * known  # [R, K]
    loss = (1.0 - soft_target_weight) * chosen
    if target_logits is not None and soft_target_weight > 0.0:
        q = torch.softmax(target_logits.float(), dim=-1)
        loss = loss + soft_target_weight * -(q * log_p).sum(-1) * known
    count = known.sum(0)
    weights = depth_decay ** torch.arange(logits.shape[1], device=logits.device)  # [K]
    total = (loss.sum(0) / count.clamp(min=1) * weights).sum()
    with torch.no_grad():
        correct = ((log_p.argmax(-1) == labels) & known).sum(0)
    return total, DepthSums(nats=chosen.detach().sum(0), correct=correct, count=count)
