"""RMSNorm of the residual stream. The result of a matrix product can be added to the stream first.

residual[m] += product[m]
out[m] = residual[m] / sqrt(mean(residual[m]^2) + eps) * weight
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.parts import Parts, load_product


@triton.jit
def _norm_kernel(
    sums_ptr,
    scales_ptr,
    bias_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    H,
    split_stride,
    eps,
    NUM_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < H
    x = tl.load(residual_ptr + row * H + column, mask=mask, other=0.0)
    if sums_ptr is not None:
        x += load_product(sums_ptr, scales_ptr, bias_ptr, row, column, mask, H, split_stride, NUM_SPLITS)
        tl.store(residual_ptr + row * H + column, x, mask=mask)
    weight = tl.load(weight_ptr + column, mask=mask, other=0.0)
    out = x * tl.rsqrt(tl.sum(x * x, 0) / H + eps) * weight
    tl.store(out_ptr + row * H + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Implements `kernels.norm.rms_norm` on CUDA; that function has checked the arguments."""
    return _launch(None, x, weight, eps, dtype)


def add_rms_norm(parts: Parts, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Adds the product to residual [M, H] float32 in place and returns its norm [M, H] in `dtype`."""
    return _launch(parts, residual, weight, eps, dtype)


def _launch(parts: Parts | None, residual: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    M, H = residual.shape
    out = torch.empty(M, H, dtype=dtype, device=residual.device)
    if M:
        block = triton.next_power_of_2(H)
        _norm_kernel[(M,)](
            None if parts is None else parts.sums,
            None if parts is None else parts.scales,
            None if parts is None else parts.bias,
            residual,
            weight,
            out,
            H,
            M * H,
            eps,
            NUM_SPLITS=1 if parts is None else parts.sums.shape[0],
            BLOCK=block,
            num_warps=min(16, max(1, block // 256)),
        )
    return out
