"""A matrix product that was computed in S splits along K, which are not yet added.

    out[m, n] = (sums[0, m, n] + ... + sums[S - 1, m, n]) scales[n] + bias[n]

The kernel that needs the product adds the splits when it loads them, always from the first to the last. This saves a
launch.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """sums: [S, M, N] float32, the products of S splits. scales, bias: [N] float32."""

    sums: Tensor
    scales: Tensor | None = None
    bias: Tensor | None = None


@triton.jit
def load_product(sums_ptr, scales_ptr, bias_ptr, row, columns, mask, N, split_stride, NUM_SPLITS: tl.constexpr):
    """Computes out[row, columns]. `row` must be int64, and `row` and `columns` must broadcast to one shape."""
    offsets = row * N + columns
    stride = tl.cast(split_stride, tl.int64)
    total = tl.load(sums_ptr + offsets, mask=mask, other=0.0)
    for split in tl.static_range(1, NUM_SPLITS):
        total += tl.load(sums_ptr + split * stride + offsets, mask=mask, other=0.0)
    if scales_ptr is not None:
        total *= tl.load(scales_ptr + columns, mask=mask, other=0.0)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + columns, mask=mask, other=0.0)
    return total
