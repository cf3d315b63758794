"""SwiGLU on CUDA: out[m, i] = silu(x[m, i]) x[m, I + i], where x is a product whose splits are added here."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.parts import Parts, load_product

_BLOCK = 1024


@triton.jit
def _swiglu_kernel(
    sums_ptr, scales_ptr, bias_ptr, out_ptr, width, split_stride, NUM_SPLITS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < width
    N = 2 * width
    gate = load_product(sums_ptr, scales_ptr, bias_ptr, row, column, mask, N, split_stride, NUM_SPLITS)
    up = load_product(sums_ptr, scales_ptr, bias_ptr, row, column + width, mask, N, split_stride, NUM_SPLITS)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def swiglu(parts: Parts, dtype: torch.dtype) -> Tensor:
    """Computes SwiGLU of a product [M, 2 I], whose first I columns are the gate -> [M, I] in `dtype`."""
    splits, M, N = parts.sums.shape
    out = torch.empty(M, N // 2, dtype=dtype, device=parts.sums.device)
    if M:
        grid = (M, -(-(N // 2) // _BLOCK))
        _swiglu_kernel[grid](parts.sums, parts.scales, parts.bias, out, N // 2, M * N, NUM_SPLITS=splits, BLOCK=_BLOCK)
    return out
