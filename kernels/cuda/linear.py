"""Products x [M, K] weight [N, K]^T of few rows with a large weight. Their speed is limited by reading the weight.

Rows are processed in tiles of 16. All tiles use the same instruction, which multiplies a block of weights by a tile, so
a row's bits depend neither on the other rows nor on the row's index. A program reads a block of the weight once for up
to eight tiles. More tiles need more programs, which read the block again. K is cut into splits, so that a weight with a
small N also has enough programs for the whole device. The splits depend only on the shape of the weight.

One-byte weights are converted to bfloat16 before the product, which is exact.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.parts import Parts, load_product

ROW_TILE = 16
BLOCK_N, _BLOCK_K = 64, 64
_MAX_TILES = 8
# The keys are numbers of tiles per program; the values are the numbers of pipeline stages for one-byte weights and for
# wider weights. In bfloat16 a program with one tile needs 50 KB of shared memory, so four programs fit on an SM of an
# H100. With eight tiles a program needs 96 KB.
_STAGES = {1: (8, 5), 2: (6, 4), 4: (5, 4), 8: (4, 4)}
_MAX_PROGRAMS = 396  # programs per row tile: three for each of the 132 SMs of an H100, so that all run at once
_MIN_SPLIT = 256  # minimum number of k per split
_ADD_BLOCK = 1024  # columns per program of the kernel that adds splits


@triton.jit
def product_tiles(
    x_ptr,
    weight_ptr,
    rows,
    columns,
    begin,
    M,
    N,
    K,
    SPLIT: tl.constexpr,
    BLOCK_K: tl.constexpr,
    TILES: tl.constexpr,
    WHOLE: tl.constexpr,  # whether K is a multiple of the split length
    BLOCKS: tl.constexpr = 1,
):
    """Computes tiles [columns, rows] of the product, summed over k = `begin` .. `begin` + SPLIT - 1.

    `rows` are the rows of the first of TILES tiles; the rows of the other tiles follow them. With BLOCKS > 1, the
    weight consists of that many parts of N columns each, and `columns` are computed in each part. The result is a
    tuple, whose item `tile * BLOCKS + block` is a tile of a part.
    """
    weights = weight_ptr + columns[:, None] * K
    part = tl.cast(N, tl.int64) * K  # numbers of a part of the weight
    totals = (tl.zeros((columns.shape[0], rows.shape[0]), tl.float32),) * (TILES * BLOCKS)
    for start in range(0, SPLIT, BLOCK_K):
        k = begin + start + tl.arange(0, BLOCK_K)
        inside = tl.full((BLOCK_K,), 1, tl.int1) if WHOLE else k < K
        loaded = ()
        for block in tl.static_range(BLOCKS):
            weight = tl.load(
                weights + block * part + k[None, :], mask=(columns < N)[:, None] & inside[None, :], other=0.0
            )
            loaded = loaded + (weight.to(x_ptr.dtype.element_ty),)  # type: ignore[assignment]  # noqa: RUF005
        added = ()
        for tile in tl.static_range(TILES):
            m = rows + tile * rows.shape[0]
            x = tl.load(x_ptr + m[None, :] * K + k[:, None], mask=(m < M)[None, :] & inside[:, None], other=0.0)
            for block in tl.static_range(BLOCKS):
                total = tl.dot(loaded[block], x, totals[tile * BLOCKS + block], input_precision="ieee")
                added = added + (total,)  # type: ignore[assignment]  # noqa: RUF005  triton knows no unpacking
        totals = added
    return totals


@triton.jit(do_not_specialize=["M"])
def _product_kernel(
    x_ptr,
    weight_ptr,
    sums_ptr,
    M,
    N,
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
    split = tl.program_id(2).to(tl.int64)
    totals = product_tiles(x_ptr, weight_ptr, rows, columns, split * SPLIT, M, N, K, SPLIT, BLOCK_K, TILES, WHOLE)
    for tile in tl.static_range(TILES):
        m = rows + tile * ROW_TILE
        offsets = (split * M + m[None, :]) * N + columns[:, None]
        tl.store(sums_ptr + offsets, totals[tile], mask=(m < M)[None, :] & (columns < N)[:, None])


@triton.jit
def _add_up_kernel(
    sums_ptr, scales_ptr, bias_ptr, add_to_ptr, out_ptr, N, split_stride, NUM_SPLITS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < N
    out = load_product(sums_ptr, scales_ptr, bias_ptr, row, columns, mask, N, split_stride, NUM_SPLITS)
    if add_to_ptr is not None:
        out += tl.load(add_to_ptr + row * N + columns, mask=mask)
    tl.store(out_ptr + row * N + columns, out, mask=mask)


def num_splits(N: int, K: int) -> int:
    """Returns the largest power of two with at most `_MAX_PROGRAMS` programs and at least `_MIN_SPLIT` k per split."""
    splits = 1
    while -(-N // BLOCK_N) * splits * 2 <= _MAX_PROGRAMS and _MIN_SPLIT * splits * 2 <= K:
        splits *= 2
    return splits


@dataclass(frozen=True, slots=True)
class ProductGrid:
    """The division of a product among programs, which form a grid of row tiles, blocks of outputs and splits of K."""

    programs: tuple[int, int, int]
    split: int  # columns per split
    tiles: int  # tiles of 16 rows per program
    stages: int

    @classmethod
    def of(cls, x: Tensor, data: Tensor, splits: int) -> "ProductGrid":
        (M, K), N = x.shape, data.shape[0]
        tiles = int(min(_MAX_TILES, triton.next_power_of_2(-(-M // ROW_TILE))))
        split = -(-K // (splits * _BLOCK_K)) * _BLOCK_K
        programs = (-(-M // (ROW_TILE * tiles)), -(-N // BLOCK_N), splits)
        return cls(programs, split, tiles, _STAGES[tiles][data.dtype.itemsize > 1])

    def options(self, K: int) -> dict[str, int | bool]:
        """Returns the compile-time parameters of the kernel."""
        return {
            "SPLIT": self.split,
            "BLOCK_N": BLOCK_N,
            "BLOCK_K": _BLOCK_K,
            "ROW_TILE": ROW_TILE,
            "TILES": self.tiles,
            "WHOLE": self.split * self.programs[2] == K,
            "num_warps": 4,
            "num_stages": self.stages,
        }


def linear_parts(
    x: Tensor, data: Tensor, scales: Tensor | None = None, bias: Tensor | None = None, *, one_sum: bool = False
) -> Parts:
    """Computes the splits of a product without adding them.

    Args:
        x: [M, K] float32 or bfloat16, contiguous.
        data: [N, K] in the dtype of x, int8 or float8_e4m3fn, contiguous.
        one_sum: whether K is a single split.
    """
    (M, K), N = x.shape, data.shape[0]
    splits = 1 if one_sum else num_splits(N, K)
    sums = torch.empty(splits, M, N, dtype=torch.float32, device=x.device)
    if M:
        grid = ProductGrid.of(x, data, splits)
        _product_kernel[grid.programs](x, data, sums, M, N, K, **grid.options(K))
    return Parts(sums=sums, scales=scales, bias=bias)


def add_up(parts: Parts, add_to: Tensor | None = None) -> Tensor:
    """Adds the splits and returns the product [M, N] float32. If `add_to` is given, adds the product to it instead."""
    splits, M, N = parts.sums.shape
    if splits == 1 and parts.scales is None and parts.bias is None and add_to is None:
        return parts.sums[0]
    out = torch.empty_like(parts.sums[0]) if add_to is None else add_to
    if M:
        grid = (M, -(-N // _ADD_BLOCK))
        _add_up_kernel[grid](
            parts.sums, parts.scales, parts.bias, add_to, out, N, M * N, NUM_SPLITS=splits, BLOCK=_ADD_BLOCK
        )
    return out


def linear(
    x: Tensor,
    data: Tensor,
    scales: Tensor | None,
    bias: Tensor | None,
    add_to: Tensor | None = None,
    *,
    one_sum: bool = False,
) -> Tensor:
    """Implements `kernels.linear.linear` on CUDA; that function has checked the arguments."""
    return add_up(linear_parts(x, data, scales, bias, one_sum=one_sum), add_to)
