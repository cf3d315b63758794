"""Adds LoRA updates of several adapters in two launches: first the product with `down`, then the product with `up`.

A tile has at most 16 adjacent rows with the same adapter, so the adapter's weights are loaded only once for these rows.
Tiles of rows without an adapter are skipped. The product with `down` is computed in splits of K.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.linear import ROW_TILE, product_tiles
from kernels.cuda.row_tiles import row_tiles
from kernels.lora import LoraStack

_BLOCK_R, _BLOCK_N, _BLOCK_K = 16, 64, 64
_SPLIT = 512  # k per split


@triton.jit
def _down_kernel(
    x_ptr,
    down_ptr,
    adapters_ptr,
    tiles_ptr,
    sums_ptr,
    M,
    R,
    K,
    SPLIT: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_TILE: tl.constexpr,
    WHOLE: tl.constexpr,
):
    first = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64)
    end = first + tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    adapter = tl.load(adapters_ptr + first)
    if (first == end) | (adapter < 0):
        return
    rows = first + tl.arange(0, ROW_TILE)
    ranks = tl.program_id(1).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    split = tl.program_id(2).to(tl.int64)
    down = down_ptr + adapter * R * K
    totals = product_tiles(x_ptr, down, rows, ranks, split * SPLIT, end, R, K, SPLIT, BLOCK_K, 1, WHOLE)
    offsets = (split * M + rows[None, :]) * R + ranks[:, None]
    tl.store(sums_ptr + offsets, totals[0], mask=(rows < end)[None, :] & (ranks < R)[:, None])


@triton.jit
def _up_kernel(
    sums_ptr,
    up_ptr,
    adapters_ptr,
    tiles_ptr,
    out_ptr,
    N,
    R,
    split_stride,
    NUM_SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    ROW_TILE: tl.constexpr,
):
    first = tl.load(tiles_ptr + 2 * tl.program_id(0)).to(tl.int64)
    end = first + tl.load(tiles_ptr + 2 * tl.program_id(0) + 1)
    adapter = tl.load(adapters_ptr + first)
    if (first == end) | (adapter < 0):
        return
    rows = first + tl.arange(0, ROW_TILE)
    columns = tl.program_id(1).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    rank = tl.arange(0, BLOCK_R)
    real = (rows < end)[None, :] & (rank < R)[:, None]
    inner = tl.zeros((BLOCK_R, ROW_TILE), tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        offsets = tl.full((), split, tl.int64) * split_stride + rows[None, :] * R + rank[:, None]
        inner += tl.load(sums_ptr + offsets, mask=real, other=0.0)
    weights = up_ptr + (adapter * N + columns[:, None]) * R + rank[None, :]
    up = tl.load(weights, mask=(columns < N)[:, None] & (rank < R)[None, :], other=0.0)
    update = tl.dot(up, inner.to(up.dtype), input_precision="ieee")
    offsets = rows[None, :] * N + columns[:, None]
    mask = (rows < end)[None, :] & (columns < N)[:, None]
    tl.store(out_ptr + offsets, tl.load(out_ptr + offsets, mask=mask) + update, mask=mask)


def stacked_lora(x: Tensor, out: Tensor, adapters: Tensor, stack: LoraStack, num_runs: int | None = None) -> None:
    """Implements `kernels.lora.stacked_lora` on CUDA; that function has checked the arguments."""
    (M, K), N, R = x.shape, out.shape[1], stack.down.shape[1]
    splits = -(-K // _SPLIT)
    sums = torch.empty(splits, M, R, dtype=torch.float32, device=x.device)
    tiles = row_tiles(adapters, ROW_TILE, stack.down.shape[0] + 1 if num_runs is None else num_runs)
    if not M:
        return
    _down_kernel[(tiles.shape[0], -(-R // _BLOCK_R), splits)](
        x,
        stack.down,
        adapters,
        tiles,
        sums,
        M,
        R,
        K,
        SPLIT=_SPLIT,
        BLOCK_R=_BLOCK_R,
        BLOCK_K=_BLOCK_K,
        ROW_TILE=ROW_TILE,
        WHOLE=splits * _SPLIT == K,
    )
    _up_kernel[(tiles.shape[0], -(-N // _BLOCK_N))](
        sums,
        stack.up,
        adapters,
        tiles,
        out,
        N,
        R,
        M * R,
        NUM_SPLITS=splits,
        BLOCK_N=_BLOCK_N,
        BLOCK_R=max(_BLOCK_R, triton.next_power_of_2(R)),
        ROW_TILE=ROW_TILE,
    )
