"""The loss of Medusa heads, in nats per token of each depth.

    loss = sum_k depth_decay**k * loss_k

loss_k is `step_loss` (eagle3/loss.py) of the logits of head k. Shape letters: B rows, K heads, H hidden size, Vd draft
vocabulary, R rows of the target's probabilities.

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
    target_rows: Tensor,
    *,
    soft_target_weight: float,
    depth_decay: float,
) -> tuple[Tensor, list[Sums]]:
    """Returns the loss, and the sums of each depth. Each loss_k is the mean over the rows that have a label for head k.

    Args:
        features: [B, K, H]. Features of B rows, for each of the K heads.
        heads: the output matrix [Vd, H] of each head.
        labels: [B, K] int64, `IGNORED` at positions without a loss.
        target: [R, Vd] float32, the target's probabilities; may be None if `soft_target_weight` is 0.
        target_rows: [B, K] int64. Row of `target` for each label.
    """
    total, sums = features.new_zeros((), dtype=torch.float32), []
    for depth, head in enumerate(heads):
        loss, depth_sums = step_loss(
            features[:, depth], head, labels[:, depth], target, target_rows[:, depth], soft_target_weight
        )
        total = total + depth_decay**depth * loss
        sums.append(depth_sums)
    return total, sums
