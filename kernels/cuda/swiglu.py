"""SwiGLU on CUDA: out[m, i] = silu(x[m, i]) x[m, I + i], where x is a product.

If the product has only one split, one kernel computes both the product and SwiGLU. Each of its programs computes the
same columns of both halves of x, so x is never stored. Otherwise a second kernel adds the splits and computes SwiGLU.
Both ways compute a number with the same operations, so they give the same bits.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.linear import ProductGrid, linear_parts, num_splits, product_tiles
from kernels.cuda.parts import Parts, load_product

_BLOCK = 1024
# As in cuda/linear.py, but a program has two blocks of the weight. In bfloat16 a program needs at most 96 KB of shared
# memory, so two programs fit on an SM of an H100.
_STAGES = {1: (8, 5), 2: (6, 4), 4: (5, 4), 8: (4, 3)}


@triton.jit
def _silu_times(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


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
    out = _silu_times(gate, up)
    tl.store(out_ptr + row * width + column, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _scaled(total, scales_ptr, bias_ptr, columns, mask):
    """Computes a tile [columns, rows] of a product from its sum, as `load_product` does."""
    if scales_ptr is not None:
        total *= tl.load(scales_ptr + columns, mask=mask, other=0.0)[:, None]
    if bias_ptr is not None:
        total += tl.load(bias_ptr + columns, mask=mask, other=0.0)[:, None]
    return total


@triton.jit(do_not_specialize=["M"])
def _swiglu_product_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    bias_ptr,
    out_ptr,
    M,
    width,
    K,
    SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_TILE: tl.constexpr,
    TILES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROW_TILE * TILES + tl.arange(0, ROW_TILE)
    columns = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    totals = product_tiles(x_ptr, weight_ptr, rows, columns, 0, M, width, K, SPLIT, BLOCK_K, TILES, WHOLE, 2)
    mask = columns < width
    for tile in tl.static_range(TILES):
        m = rows + tile * ROW_TILE
        gate = _scaled(totals[2 * tile], scales_ptr, bias_ptr, columns, mask)
        up = _scaled(totals[2 * tile + 1], scales_ptr, bias_ptr, columns + width, mask)
        out = _silu_times(gate, up).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + m[None, :] * width + columns[:, None], out, mask=(m < M)[None, :] & mask[:, None])


def swiglu(parts: Parts, dtype: torch.dtype) -> Tensor:
    """Computes SwiGLU of a product [M, 2 I], whose first I columns are the gate -> [M, I] in `dtype`."""
    splits, M, N = parts.sums.shape
    out = torch.empty(M, N // 2, dtype=dtype, device=parts.sums.device)
    if M:
        grid = (M, -(-(N // 2) // _BLOCK))
        _swiglu_kernel[grid](parts.sums, parts.scales, parts.bias, out, N // 2, M * N, NUM_SPLITS=splits, BLOCK=_BLOCK)
    return out


def swiglu_linear(x: Tensor, data: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    """Computes SwiGLU of the product of x [M, K] with a weight [2 I, K] -> [M, I] in the dtype of x.

    The arguments are as in `kernels.cuda.linear.linear_parts`. The first I rows of the weight belong to the gate.
    """
    (M, K), width = x.shape, data.shape[0] // 2
    if num_splits(2 * width, K) > 1:
        return swiglu(linear_parts(x, data, scales, bias), x.dtype)
    out = torch.empty(M, width, dtype=x.dtype, device=x.device)
    if M:
        grid = ProductGrid.of(x, data[:width], 1)
        options = grid.options(K) | {"num_stages": _STAGES[grid.tiles][data.dtype.itemsize > 1]}
        _swiglu_product_kernel[grid.programs](x, data, scales, bias, out, M, width, K, **options)
    return out
