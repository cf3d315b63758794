"""Divides the rows of a pass into tiles of adjacent rows with the same key, on the device.

The key of a row is the index of its sequence or adapter. A tile is a pair of its first row and its number of rows. With
2 rows per tile, the keys [3, 3, 3, 5, 5] give the tiles (0, 2), (2, 1), (3, 2), followed by unused tiles (0, 0).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _maximum(a, b):
    return tl.maximum(a, b)


@triton.jit(do_not_specialize=["M"])
def _row_tiles_kernel(keys_ptr, tiles_ptr, M, num_tiles, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.arange(0, BLOCK)
    inside = row < M
    key = tl.load(keys_ptr + row, mask=inside, other=0)
    before = tl.load(keys_ptr + row - 1, mask=inside & (row > 0), other=0)
    after = tl.load(keys_ptr + row + 1, mask=row + 1 < M, other=0)
    starts = (row == 0) | (key != before)
    key_start = tl.associative_scan(tl.where(starts, row, 0), 0, _maximum)  # first row of the run of equal keys
    index_in_tile = (row - key_start) % ROWS
    first = inside & (index_in_tile == 0)
    last = inside & ((row == M - 1) | (key != after) | (index_in_tile == ROWS - 1))
    tile = tl.cumsum(first.to(tl.int32), 0) - 1
    tl.store(tiles_ptr + 2 * tile, row, mask=first)
    tl.store(tiles_ptr + 2 * tile + 1, index_in_tile + 1, mask=last)
    unused = (row >= tl.sum(first.to(tl.int32), 0)) & (row < num_tiles)
    tl.store(tiles_ptr + 2 * row, 0, mask=unused)
    tl.store(tiles_ptr + 2 * row + 1, 0, mask=unused)


def row_tiles(keys: Tensor, rows: int, num_runs: int) -> Tensor:
    """Divides M rows into tiles of at most `rows` rows.

    Args:
        keys: [M] int64.
        num_runs: maximum number of runs. A run consists of adjacent rows with equal keys.

    Returns: [n, 2] int32, first row and count of each tile. The host does not read the keys, so n is the largest number
        of tiles that is possible with M rows and `num_runs` runs. Unused tiles at the end have the count 0.
    """
    M = keys.shape[0]
    num_tiles = min(M, (M + num_runs * (rows - 1)) // rows)
    tiles = torch.empty(num_tiles, 2, dtype=torch.int32, device=keys.device)
    if M:
        _row_tiles_kernel[(1,)](keys, tiles, M, num_tiles, ROWS=rows, BLOCK=triton.next_power_of_2(M))
    return tiles
