"""The loss of EAGLE-3, and of other drafters with one row per token, in nats per token of each unroll step.

    loss_s = (1 - w) * -log p_s(token) + w * -sum_v q(v) log p_s(v)        loss = sum_s step_decay**s * loss_s

p_s is the drafter's distribution over the draft vocabulary after s drafted tokens, q the target's at that position, cut
to the same vocabulary. Rows are processed in chunks, and the gradient of each chunk is kept instead of its
probabilities, so that no more than one chunk of logits exists at a time.

Source: Li et al. 2025, arXiv:2503.01840; the chunks: Liger's fused linear cross-entropy, arXiv:2410.10989.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.losses import Blend, blend_rows
from workers.training.data import IGNORED
from workers.training.figures import Sums

_CHUNK = 2048 * 8192  # logits


def step_loss(
    features: Tensor, lm_head: Tensor, labels: Tensor, target: Tensor | None, chosen: Tensor, soft_weight: float
) -> tuple[Tensor, Sums]:
    """Returns the mean over labelled rows of one step.

    Args:
        features: [A, H]. The drafter's features after its last norm.
        lm_head: [Vd, H]; gets a gradient if it requires one.
        labels: [A] int64, `IGNORED` at positions without a loss.
        target: [R, Vd] float32, the target's probabilities; None where `soft_weight` is 0.
        chosen: [A] int64. Row of `target` for each label.
    """
    known = (labels != IGNORED).nonzero().flatten()
    count = known.shape[0]
    total, nats, correct = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        features[known], lm_head, labels[known], target, chosen[known], soft_weight
    )
    return total / max(1, count), Sums(float(nats), int(correct), count)


class _CrossEntropy(torch.autograd.Function):
    """Sum over rows. The forward pass computes gradients chunk by chunk, if the features require them."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        lm_head: Tensor,
        labels: Tensor,
        target: Tensor | None,
        chosen: Tensor,
        soft_weight: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        learns, head_learns, *_ = ctx.needs_input_grad
        to_features = torch.zeros_like(features) if learns else None
        to_head = torch.zeros_like(lm_head) if learns and head_learns else None
        size = max(1, _CHUNK // lm_head.shape[0])
        total, nats = (features.new_zeros((), dtype=torch.float32) for _ in range(2))
        correct = labels.new_zeros(())
        for start in range(0, features.shape[0], size):
            rows = slice(start, start + size)
            logits = (features[rows] @ lm_head.T).float()  # [C, Vd]
            blend = Blend(labels[rows], target, chosen[rows], soft_weight)
            sums = blend_rows(logits, blend, gradient=to_features is not None)
            total, nats, correct = total + sums.loss, nats + sums.nats, correct + sums.correct
            if to_features is None:
                continue
            error = logits.to(features.dtype)
            to_features[rows] = error @ lm_head
            if to_head is not None:
                to_head += error.T @ features[rows]
        ctx.save_for_backward(to_features, to_head)
        ctx.mark_non_differentiable(nats, correct)
        return total, nats, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        to_features, to_head = ctx.saved_tensors
        return grad * to_features, None if to_head is None else grad * to_head, None, None, None, None
