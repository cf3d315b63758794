"""The loss of EAGLE-3 drafters, in nats per token of each unroll step. Other methods use `step_loss` as well.

    loss_s = (1 - w) * -log p_s(label) + w * -sum_v q_s(v) log p_s(v)        loss = sum_s step_decay**s * loss_s

p_s and q_s are the drafter's and the target's distribution over the draft vocabulary at unroll step s; w is
`soft_weight`. Rows are processed in chunks. The forward pass also computes the gradient of each chunk, so that the
logits of only one chunk are in memory at a time.

Shape letters: A rows, H hidden size, Vd draft vocabulary, R rows of the target's probabilities, C rows of a chunk.

Source: Li et al. 2025, arXiv:2503.01840; the chunks: Liger's fused linear cross-entropy, arXiv:2410.10989.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kernels.losses import Blend, blend_rows
from workers.training.data import IGNORED
from workers.training.figures import Sums

_CHUNK = 2048 * 8192  # maximum number of logits of a chunk: 2,048 rows with the default draft vocabulary


def step_loss(
    features: Tensor, lm_head: Tensor, labels: Tensor, target: Tensor | None, target_rows: Tensor, soft_weight: float
) -> tuple[Tensor, Sums]:
    """Returns the mean loss of one step over the rows with a label, and the sums over these rows.

    Args:
        features: [A, H]. The drafter's features after its last norm.
        lm_head: [Vd, H]; gets a gradient if it requires one.
        labels: [A] int64, `IGNORED` at positions without a loss.
        target: [R, Vd] float32, the target's probabilities; may be None if `soft_weight` is 0.
        target_rows: [A] int64. Row of `target` for each label.
    """
    labelled = (labels != IGNORED).nonzero().flatten()
    count = labelled.shape[0]
    total, nats, correct = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        features[labelled], lm_head, labels[labelled], target, target_rows[labelled], soft_weight
    )
    return total / max(1, count), Sums(float(nats), int(correct), count)


class _CrossEntropy(torch.autograd.Function):
    """Returns loss, nats and number of correct rows, summed over rows. The forward pass also computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        lm_head: Tensor,
        labels: Tensor,
        target: Tensor | None,
        target_rows: Tensor,
        soft_weight: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        features_learn, head_learns, *_ = ctx.needs_input_grad
        features_gradient = torch.zeros_like(features) if features_learn else None
        head_gradient = torch.zeros_like(lm_head) if features_learn and head_learns else None
        size = max(1, _CHUNK // lm_head.shape[0])
        total, nats = (features.new_zeros((), dtype=torch.float32) for _ in range(2))
        correct = labels.new_zeros(())
        for start in range(0, features.shape[0], size):
            rows = slice(start, start + size)
            logits = (features[rows] @ lm_head.T).float()  # [C, Vd]
            blend = Blend(labels[rows], target, target_rows[rows], soft_weight)
            sums = blend_rows(logits, blend, gradient=features_gradient is not None)
            total, nats, correct = total + sums.loss, nats + sums.nats, correct + sums.correct
            if features_gradient is None:
                continue
            logits_gradient = logits.to(features.dtype)  # blend_rows has overwritten the logits with their gradient
            features_gradient[rows] = logits_gradient @ lm_head
            if head_gradient is not None:
                head_gradient += logits_gradient.T @ features[rows]
        ctx.save_for_backward(features_gradient, head_gradient)
        ctx.mark_non_differentiable(nats, correct)
        return total, nats, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        features_gradient, head_gradient = ctx.saved_tensors
        return grad * features_gradient, None if head_gradient is None else grad * head_gradient, None, None, None, None
