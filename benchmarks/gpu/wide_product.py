"""Tells whether one wide matrix instruction gives rows the same bits as several narrow ones.

Products use the instruction m64n16k16 for each tile of 16 rows, whatever the number of rows. If m64n128k16 adds in the
same order, passes of many rows may use it and need an eighth of the instructions. Only a run on a GPU can show this.
"""

from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.inputs import Inputs
from kernels.cuda.linear import ProductGrid, _product_kernel, linear_parts, num_splits

WIDE_TILE = 128


def wide_parts(x: Tensor, weight: Tensor) -> Tensor:
    """Returns the splits [splits, M, N] float32 of x [M, K] weight [N, K]^T in tiles of 128 rows."""
    (M, K), N = x.shape, weight.shape[0]
    splits = num_splits(N, K)
    sums = torch.empty(splits, M, N, dtype=torch.float32, device=x.device)
    grid = ProductGrid.of(x, weight, splits)
    options = grid.options(K) | {"ROW_TILE": WIDE_TILE, "TILES": 1}
    _product_kernel[-(-M // WIDE_TILE), *grid.programs[1:]](x, weight, sums, M, N, K, **options)
    return sums


def wide_against_narrow(inputs: Inputs, N: int, K: int, M: int) -> dict[str, Any]:
    """Compares M rows. `passed` is None, because neither result is a fault."""
    x, weight = inputs.normal(M, K), inputs.normal(N, K)
    different = (wide_parts(x, weight) != linear_parts(x, weight).sums).any(2).any(0).nonzero().flatten().tolist()
    operation = "a product of 128 rows in one instruction and in eight"
    return {"operation": operation, "compared": M, "different": different, "passed": None}
