"""Losses of rows of logits and their gradients on CUDA. One program per row reads the row two or three times."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.losses import Blend, BlendSums, Loss

_BLOCK = 4096
_CROSS_ENTROPY, _KL = tl.constexpr(Loss.CROSS_ENTROPY.value), tl.constexpr(Loss.KL.value)


@triton.jit
def _log_total(row_ptr, V, BLOCK: tl.constexpr):
    """Computes log sum_v exp(row[v])."""
    dtype = row_ptr.dtype.element_ty
    top = tl.full((), float("-inf"), dtype)
    total = tl.full((), 0.0, dtype)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + column, mask=column < V, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    return top + tl.log(total)


@triton.jit
def _slope(p, q):
    """Computes 1/2 sign(p - q)."""
    return tl.where(p > q, 0.5, tl.where(p < q, -0.5, 0.0)).to(p.dtype)


@triton.jit
def _loss_kernel(logits_ptr, target_ptr, scale_ptr, rows_ptr, V, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * V
    scale = tl.load(scale_ptr + row)
    log_total = _log_total(logits, V, BLOCK)
    loss = tl.full((), 0.0, logits_ptr.dtype.element_ty)
    mean_slope = loss  # sum_v p_v g_v of kernels/losses.py
    label = 0
    teacher = target_ptr
    log_teacher = log_total
    if KIND == _CROSS_ENTROPY:
        label = tl.load(target_ptr + row)
        loss = log_total - tl.load(logits + label)
    else:
        teacher = target_ptr + row * V
        log_teacher = _log_total(teacher, V, BLOCK)
        for start in range(0, V, BLOCK):
            column = start + tl.arange(0, BLOCK)
            log_p = tl.load(logits + column, mask=column < V, other=float("-inf")) - log_total
            log_q = tl.load(teacher + column, mask=column < V, other=float("-inf")) - log_teacher
            p, q = tl.exp(log_p), tl.exp(log_q)
            if KIND == _KL:
                loss += tl.sum(q * (tl.where(q > 0.0, log_q, 0.0) - tl.where(q > 0.0, log_p, 0.0)), 0)
            else:
                loss += tl.sum(tl.abs(p - q), 0) / 2
                mean_slope += tl.sum(p * _slope(p, q), 0)
    tl.store(rows_ptr + row, loss)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        p = tl.exp(tl.load(logits + column, mask=column < V, other=float("-inf")) - log_total)
        if KIND == _CROSS_ENTROPY:
            gradient = p - (column == label).to(p.dtype)
        else:
            q = tl.exp(tl.load(teacher + column, mask=column < V, other=float("-inf")) - log_teacher)
            gradient = p - q if KIND == _KL else p * (_slope(p, q) - mean_slope)
        tl.store(logits + column, gradient * scale, mask=column < V)


def loss_rows(kind: Loss, logits: Tensor, target: Tensor, scale: Tensor) -> Tensor:
    """Computes the same as `kernels.losses.loss_rows_reference`."""
    C, V = logits.shape
    rows = torch.empty(C, dtype=logits.dtype, device=logits.device)
    if C:
        block = min(_BLOCK, triton.next_power_of_2(V))
        _loss_kernel[(C,)](logits, target, scale, rows, V, KIND=kind.value, BLOCK=block, num_warps=8)
    return rows


@triton.jit
def _blend_kernel(
    logits_ptr,
    labels_ptr,
    probabilities_ptr,
    probability_rows_ptr,
    losses_ptr,
    nats_ptr,
    correct_ptr,
    hard_weight,
    soft_weight,
    V,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * V
    log_total = _log_total(logits, V, BLOCK)
    label = tl.load(labels_ptr + row)
    label_loss = log_total - tl.load(logits + label)
    loss = hard_weight * label_loss
    target_ptr = logits
    if probabilities_ptr is not None:
        target_ptr = probabilities_ptr + tl.load(probability_rows_ptr + row) * V
    best = tl.full((), float("-inf"), tl.float32)
    winner = tl.full((), 0, tl.int64)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < V
        x = tl.load(logits + column, mask=inside, other=float("-inf"))
        block_best = tl.max(x, 0)
        first = tl.min(tl.where(x == block_best, column, V), 0).to(tl.int64)
        winner = tl.where(block_best > best, first, winner)
        best = tl.maximum(best, block_best)
        target = tl.where(column == label, hard_weight, 0.0)
        if probabilities_ptr is not None:
            soft = soft_weight * tl.load(target_ptr + column, mask=inside, other=0.0)
            loss += tl.sum(soft * tl.where(inside, log_total - x, 0.0), 0)
            target += soft
        if GRADIENT:
            tl.store(logits + column, tl.exp(x - log_total) - target, mask=inside)
    tl.store(losses_ptr + row, loss)
    tl.store(nats_ptr + row, label_loss)
    tl.store(correct_ptr + row, (winner == label).to(tl.int64))


def blend_rows(logits: Tensor, blend: Blend, *, gradient: bool) -> BlendSums:
    """Implements `kernels.losses.blend_rows` on CUDA; that function has checked the arguments."""
    C, V = logits.shape
    losses, nats = torch.empty(2, C, dtype=torch.float32, device=logits.device)
    correct = torch.empty(C, dtype=torch.int64, device=logits.device)
    if C:
        _blend_kernel[(C,)](
            logits,
            blend.labels,
            blend.probabilities,
            blend.probability_rows,
            losses,
            nats,
            correct,
            blend.hard_weight,
            blend.soft_weight,
            V,
            GRADIENT=gradient,
            BLOCK=min(_BLOCK, triton.next_power_of_2(V)),
            num_warps=8,
        )
    return BlendSums(losses.sum(), nats.sum(), correct.sum())
