"""Losses of an LM head with a large vocabulary. The logits are computed in parts, so they are never all in memory.

s = hidden weight^T are the logits and p = softmax(s). q are the teacher's probabilities. ds is the gradient of the loss
with respect to s. [v = label] is 1 at the label and 0 elsewhere:

    cross entropy     -log p[label]                ds = p - [v = label]
    kl                sum_v q_v log(q_v / p_v)     ds = p - q
    total variation   1/2 sum_v |p_v - q_v|        ds = p (g - sum_v p_v g_v),  g = 1/2 sign(p - q)
    blend             -sum_v w_v log p_v           ds = p - w,  w_v = (1 - b) [v = label] + b q_v

For kl and total variation, q is computed here from the teacher's hidden states and weight. For blend, the caller gives
q and its weight b. M is the number of rows, C the number of rows of a part, V the size of the vocabulary.

The forward pass computes the loss and its gradient. The backward pass only scales this gradient.

Source: Liger-Kernel, arXiv:2410.10989. Total variation is one minus the probability of acceptance: Leviathan et al.
2023, arXiv:2211.17192.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from kernels.checks import check_tensor

_LOGITS_AT_A_TIME = 2**24  # 64 MiB of float32


class Loss(Enum):
    CROSS_ENTROPY = 0
    KL = 1
    TOTAL_VARIATION = 2


@dataclass(frozen=True, slots=True)
class Teacher:
    """The factors of the teacher's logits: hidden [M, Ht] and weight [V, Ht]. They get no gradient."""

    hidden: Tensor
    weight: Tensor


def loss_rows_reference(kind: Loss, logits: Tensor, target: Tensor, scale: Tensor) -> Tensor:
    """Returns the loss of each row, [C] in the dtype of logits, and overwrites logits with scale times the gradient.

    Args:
        logits: [C, V] float32 or float64. scale: [C] in the same dtype.
        target: labels [C] int64 for cross entropy, else the teacher's logits [C, V] in the same dtype.
    """
    log_p = logits.log_softmax(-1)
    p = log_p.exp()
    if kind is Loss.CROSS_ENTROPY:
        rows = -log_p.gather(1, target.unsqueeze(1)).squeeze(1)
        gradient = p.scatter_add(1, target.unsqueeze(1), -torch.ones_like(p[:, :1]))
    else:
        q = target.softmax(-1)
        if kind is Loss.KL:
            rows = torch.where(q > 0.0, q * (target.log_softmax(-1) - log_p), 0.0).sum(-1)
            gradient = p - q
        else:
            rows = (p - q).abs().sum(-1) / 2
            slope = (p - q).sign() / 2
            gradient = p * (slope - (p * slope).sum(-1, keepdim=True))
    logits.copy_(gradient * scale.unsqueeze(1))
    return rows


def loss_rows(kind: Loss, logits: Tensor, target: Tensor, scale: Tensor) -> Tensor:
    """Does the same as `loss_rows_reference`; on CUDA, with a kernel."""
    if logits.is_cuda:
        from kernels.cuda.losses import loss_rows as launch  # imported here, because triton requires CUDA

        return launch(kind, logits, target, scale)
    return loss_rows_reference(kind, logits, target, scale)


@dataclass(frozen=True, slots=True)
class Blend:
    """The targets of C rows: a label with weight 1 - soft_weight, and a teacher's probabilities with `soft_weight`.

    labels: [C] int64.
    probabilities: [R, V] float32; None if `soft_weight` is 0.
    probability_rows: [C] int64. For each row of logits, the row of `probabilities`.
    """

    labels: Tensor
    probabilities: Tensor | None
    probability_rows: Tensor
    soft_weight: float

    @property
    def hard_weight(self) -> float:
        return 1.0 if self.probabilities is None else 1.0 - self.soft_weight


@dataclass(frozen=True, slots=True)
class BlendSums:
    """Sums over rows.

    loss, nats: float32, the blended loss and -log p[label], both in nats.
    correct: int64, the number of rows whose likeliest token is the label.
    """

    loss: Tensor
    nats: Tensor
    correct: Tensor


def blend_rows_reference(logits: Tensor, blend: Blend, *, gradient: bool) -> BlendSums:
    """Reference of `blend_rows`."""
    log_p = logits.log_softmax(-1)  # [C, V]
    label_log_p = log_p.gather(-1, blend.labels.unsqueeze(-1))
    if blend.probabilities is None:
        targets = torch.zeros_like(log_p)
    else:
        targets = blend.soft_weight * blend.probabilities[blend.probability_rows]
    targets.scatter_add_(-1, blend.labels.unsqueeze(-1), torch.full_like(label_log_p, blend.hard_weight))
    correct = (log_p.argmax(-1) == blend.labels).sum()
    sums = BlendSums(-(targets * log_p).sum(), -label_log_p.sum(), correct)
    if gradient:
        torch.sub(log_p.exp_(), targets, out=logits)
    return sums


def blend_rows(logits: Tensor, blend: Blend, *, gradient: bool) -> BlendSums:
    """Computes the sums for logits [C, V] float32. If `gradient` is true, overwrites the logits with their gradient.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    C, V = logits.shape
    check_tensor(logits, "logits", (C, V), torch.float32)
    check_tensor(blend.labels, "labels", (C,), torch.int64)
    check_tensor(blend.probability_rows, "probability_rows", (C,), torch.int64)
    if blend.probabilities is not None:
        check_tensor(blend.probabilities, "probabilities", (None, V), torch.float32)
    if logits.is_cuda:
        from kernels.cuda.losses import blend_rows as launch  # imported here, because triton requires CUDA

        return launch(logits, blend, gradient=gradient)
    return blend_rows_reference(logits, blend, gradient=gradient)


def _targets(target: Tensor | Teacher, part: slice, dtype: torch.dtype) -> Tensor:
    if isinstance(target, Teacher):
        return (target.hidden[part] @ target.weight.T).to(dtype)
    return target[part]


class _LinearLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        kind: Loss,
        target: Tensor | Teacher,
        scale: Tensor,
        num_rows: int,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)  # float32, or float64 if hidden is float64
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight, dtype=wide) if ctx.needs_input_grad[1] else None
        scale = scale.to(wide)
        rows = torch.empty(hidden.shape[0], dtype=wide, device=hidden.device)
        for first in range(0, hidden.shape[0], num_rows):
            part = slice(first, first + num_rows)
            logits = (hidden[part] @ weight.T).to(wide)
            rows[part] = loss_rows(kind, logits, _targets(target, part, wide), scale[part])
            gradient = logits.to(hidden.dtype)  # loss_rows has overwritten the logits with their gradient
            if d_hidden is not None:
                d_hidden[part] = gradient @ weight
            if d_weight is not None:
                d_weight += gradient.T @ hidden[part]
        ctx.save_for_backward(d_hidden, None if d_weight is None else d_weight.to(weight.dtype))
        ctx.mark_non_differentiable(rows)
        return (rows * scale).sum(), rows

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
        d_loss = d_outputs[0]
        scaled = [None if saved is None else saved * d_loss.to(saved.dtype) for saved in ctx.saved_tensors]
        return (*scaled, None, None, None, None)


def linear_loss(
    kind: Loss,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor | Teacher,
    scale: Tensor,
    *,
    num_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes the loss of M rows without storing all their logits.

    Args:
        hidden: [M, H]. weight: [V, H] in the same dtype. Both may require gradients.
        target: labels [M] int64 for cross entropy, else a teacher.
        scale: [M]; 0 excludes a row. It gets no gradient.
        num_rows: number of rows whose logits are in memory at a time; None: as many as fit into 64 MiB of float32.

    Returns: sum_m scale[m] loss[m], and the losses [M] without gradient, in nats (total variation has no unit).
    Raises: ValueError: shapes or dtypes do not fit, or `target` does not belong to this loss.
    """
    M, V = hidden.shape[0], weight.shape[0]
    check_tensor(hidden, "hidden", (M, weight.shape[1]), weight.dtype)
    if isinstance(target, Teacher) == (kind is Loss.CROSS_ENTROPY):
        raise ValueError(f"{kind.name} does not accept {type(target).__name__}")
    if isinstance(target, Teacher):
        check_tensor(target.hidden, "teacher hidden", (M, target.weight.shape[1]), target.weight.dtype)
        check_tensor(target.weight, "teacher weight", (V, None), target.weight.dtype)
    else:
        check_tensor(target, "labels", (M,), torch.int64)
    if scale.shape != (M,):
        raise ValueError(f"scale must be [{M}], got {list(scale.shape)}")
    loss, rows = _LinearLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, kind, target, scale, num_rows or max(1, _LOGITS_AT_A_TIME // V)
    )
    return loss, rows
