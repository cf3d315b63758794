"""Loss and gradient of rows of logits on CUDA, in three passes over a row: its sum, its loss, its gradient."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.losses import Loss

_BLOCK = 4096
_CROSS_ENTROPY, _KL = tl.constexpr(Loss.CROSS_ENTROPY.value), tl.constexpr(Loss.KL.value)


@triton.jit
def _log_total(row_ptr, V, BLOCK: tl.constexpr):
    """log sum_v exp(row[v])"""
    kind = row_ptr.dtype.element_ty
    top = tl.full((), float("-inf"), kind)
    total = tl.full((), 0.0, kind)
    for start in range(0, V, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(row_ptr + column, mask=column < V, other=float("-inf"))
        new_top = tl.maximum(top, tl.max(x, 0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(x - new_top), 0)
        top = new_top
    return top + tl.log(total)


@triton.jit
def _slope(p, q):
    """1/2 sign(p - q)"""
    return tl.where(p > q, 0.5, tl.where(p < q, -0.5, 0.0)).to(p.dtype)


@triton.jit
def _loss_kernel(logits_ptr, against_ptr, scale_ptr, rows_ptr, V, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits = logits_ptr + row * V
    scale = tl.load(scale_ptr + row)
    log_total = _log_total(logits, V, BLOCK)
    loss = tl.full((), 0.0, logits_ptr.dtype.element_ty)
    mean_slope = loss
    label = 0
    teacher = against_ptr
    log_teacher = log_total
    if KIND == _CROSS_ENTROPY:
        label = tl.load(against_ptr + row)
        loss = log_total - tl.load(logits + label)
    else:
        teacher = against_ptr + row * V
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


def loss_rows(kind: Loss, logits: Tensor, against: Tensor, scale: Tensor) -> Tensor:
    """As `kernels.losses.loss_rows_reference`."""
    C, V = logits.shape
    rows = torch.empty(C, dtype=logits.dtype, device=logits.device)
    if C:
        block = min(_BLOCK, triton.next_power_of_2(V))
        _loss_kernel[(C,)](logits, against, scale, rows, V, KIND=kind.value, BLOCK=block, num_warps=8)
    return rows
