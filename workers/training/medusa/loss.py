"""The loss of Medusa heads, in nats per token of each depth.

    loss = sum_k depth_decay**k * loss_k        loss_k: that of a step of EAGLE-3, of head k's distribution

Source: Cai et al. 2024, arXiv:2401.10774 (decay, self-distillation).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workers.training.eagle3.loss import step_loss
from workers.training.figures import Sums


def medusa_loss(
    features: Tensor,
    heads: Sequence[Tensor],
    labels: Tensor,
    target: Tensor | None,
    chosen: Tensor,
    *,
    soft_target_weight: float,
    depth_decay: float,
) -> tuple[Tensor, list[Sums]]:
    """The mean over labelled rows of each depth, weighted by depth; and each depth's sums.

    Args:
        features: [B, K, H].
        heads: of each depth [Vd, H].
        labels: [B, K] int64, `IGNORED` where there is nothing to learn.
        target: [R, Vd] float32, the target's own probabilities, or None where `soft_target_weight` is 0.
        chosen: [B, K] int64. Row of `target` for each label.
    """
    total, sums = features.new_zeros((), dtype=torch.float32), []
    for depth, head in enumerate(heads):
        loss, found = step_loss(
            features[:, depth], head, labels[:, depth], target, chosen[:, depth], soft_target_weight
        )
        total = total + depth_decay**depth * loss
        sums.append(found)
    return total, sums
