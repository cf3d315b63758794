"""The computation of Medusa heads that follows their matrix product: out[m, h] = x[m, :H] + silu(product[m, h])."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.parts import Parts, load_product

_BLOCK = 1024


@triton.jit
def _heads_kernel(
    sums_ptr,
    scales_ptr,
    bias_ptr,
    x_ptr,
    out_ptr,
    H,
    K,
    N,
    split_stride,
    NUM_SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < N
    inner = load_product(sums_ptr, scales_ptr, bias_ptr, row, column, mask, N, split_stride, NUM_SPLITS)
    x = tl.load(x_ptr + row * K + column % H, mask=mask, other=0.0).to(tl.float32)
    out = x + inner / (1.0 + tl.exp(-inner))
    tl.store(out_ptr + row * N + column, out.to(out_ptr.dtype.element_ty), mask=mask)


def medusa_heads(x: Tensor, parts: Parts, num_heads: int) -> Tensor:
    """Computes all heads from x [M, K] and a product [M, heads * H] -> [M, heads, H] in the dtype of x."""
    splits, M, N = parts.sums.shape
    out = torch.empty(M, num_heads, N // num_heads, dtype=x.dtype, device=x.device)
    if M:
        _heads_kernel[(M, -(-N // _BLOCK))](
            parts.sums,
            parts.scales,
            parts.bias,
            x,
            out,
            N // num_heads,
            x.shape[1],
            N,
            M * N,
            NUM_SPLITS=splits,
            BLOCK=_BLOCK,
        )
    return out
