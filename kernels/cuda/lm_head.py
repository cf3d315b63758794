"""LM head on CUDA. Each Triton program multiplies with a block of the vocabulary and selects the block's best tokens.
Other kernels then select the best tokens of all blocks.

Noise is computed in float64 from the words of kernels/philox.py.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.cuda.linear import BLOCK_N, ProductGrid, product_tiles
from kernels.lm_head import BestTokens, Head, SampledRows

_NO_COLUMN = tl.constexpr(2**31 - 1)  # larger than any column, so that a minimum over columns ignores it
_CHUNK = 4096  # candidates per program of `_merge_kernel`


@triton.jit
def gumbel(seeds, positions, tokens):
    """Computes the noise of kernels/philox.py: int64 arguments, broadcast together -> float64."""
    zeros = (tokens + positions * 0).to(tl.uint32) * 0  # has the common shape; adding it broadcasts an argument
    block = (tokens >> 2).to(tl.uint32) + zeros
    w0, w1, w2, w3 = tl.philox(seeds, block, positions.to(tl.uint32) + zeros, zeros, zeros)
    lane = tokens & 3
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    return -tl.log(-tl.log((word.to(tl.float64) + 0.5) / 4294967296.0))


@triton.jit
def _logits(total, scales_ptr, base_ptr, base_stride, m, columns, M, N):
    """Computes the logits [columns, rows] of a tile from its products; -inf for columns beyond the vocabulary."""
    inside = (columns < N)[:, None]
    if scales_ptr is not None:
        total = total * tl.load(scales_ptr + columns, mask=columns < N, other=0.0)[:, None]
    if base_ptr is not None:
        offsets = m[None, :] * base_stride + columns[:, None]
        total += tl.load(base_ptr + offsets, mask=inside & (m < M)[None, :], other=0.0)
    return tl.where(inside, total, float("-inf"))


@triton.jit
def _best_of(scores, columns):
    """Returns the best score of each row of scores [columns, rows], and the first column with this score."""
    best = tl.max(scores, 0)
    return best, tl.min(tl.where(scores == best[None, :], columns[:, None], _NO_COLUMN), 0)


@triton.jit(do_not_specialize=["M"])
def _sample_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    base_ptr,
    vocab_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    scores_ptr,
    winners_ptr,
    M,
    N,
    K,
    base_stride,
    SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_TILE: tl.constexpr,
    TILES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROW_TILE * TILES + tl.arange(0, ROW_TILE)
    block = tl.program_id(1)
    columns = block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    totals = product_tiles(x_ptr, weight_ptr, rows, columns, 0, M, N, K, SPLIT, BLOCK_K, TILES, WHOLE)
    tokens = columns if vocab_ptr is None else tl.load(vocab_ptr + columns, mask=columns < N, other=0)
    for tile in tl.static_range(TILES):
        m = rows + tile * ROW_TILE
        scores = _logits(totals[tile], scales_ptr, base_ptr, base_stride, m, columns, M, N).to(tl.float64)
        temperature = tl.load(temperatures_ptr + m, mask=m < M, other=0.0)
        if tl.max(temperature, 0) > 0.0:
            seed = tl.load(seeds_ptr + m, mask=m < M, other=0)
            position = tl.load(positions_ptr + m, mask=m < M, other=0)
            noise = gumbel(seed[None, :], position[None, :], tokens[:, None])
            sampled = (temperature > 0.0)[None, :]
            scores = tl.where(sampled, scores / tl.where(sampled, temperature[None, :], 1.0) + noise, scores)
        best, column = _best_of(scores, columns)
        index = m * tl.num_programs(1) + block
        tl.store(scores_ptr + index, best, mask=m < M)
        tl.store(winners_ptr + index, column, mask=m < M)


@triton.jit
def _winner_kernel(scores_ptr, winners_ptr, vocab_ptr, out_ptr, count, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    scores = tl.load(scores_ptr + row * count + index, mask=index < count, other=float("-inf"))
    columns = tl.load(winners_ptr + row * count + index, mask=index < count, other=_NO_COLUMN)
    token = tl.min(tl.where(scores == tl.max(scores, 0), columns, _NO_COLUMN), 0)
    token = tl.where(token == _NO_COLUMN, 0, token)  # if all scores are NaN, no column equals the maximum
    if vocab_ptr is not None:
        token = tl.load(vocab_ptr + token)
    tl.store(out_ptr + row, token)


def _num_blocks(head: Head) -> int:
    return -(-head.data.shape[0] // BLOCK_N)


def sample_rows(x: Tensor, head: Head, rows: SampledRows, base: Tensor | None) -> Tensor:
    """Implements `kernels.lm_head.sample_rows` on CUDA; that function has checked the arguments."""
    (M, K), V, blocks = x.shape, head.data.shape[0], _num_blocks(head)
    out = torch.empty(M, dtype=torch.int64, device=x.device)
    scores = torch.empty(M, blocks, dtype=torch.float64, device=x.device)
    winners = torch.empty(M, blocks, dtype=torch.int64, device=x.device)
    if M:
        grid = ProductGrid.of(x, head.data, 1)
        _sample_kernel[grid.programs](
            x,
            head.data,
            head.scales,
            base,
            head.vocab,
            rows.temperatures,
            rows.seeds,
            rows.positions,
            scores,
            winners,
            M,
            V,
            K,
            0 if base is None else base.stride(0),
            **grid.options(K),
        )
        _winner_kernel[(M,)](scores, winners, head.vocab, out, blocks, BLOCK=triton.next_power_of_2(blocks))
    return out


@triton.jit(do_not_specialize=["M"])
def _best_kernel(
    x_ptr,
    weight_ptr,
    scales_ptr,
    base_ptr,
    values_ptr,
    columns_ptr,
    sums_ptr,
    M,
    N,
    K,
    base_stride,
    COUNT: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROW_TILE: tl.constexpr,
    TILES: tl.constexpr,
    WHOLE: tl.constexpr,
):
    rows = tl.program_id(0).to(tl.int64) * ROW_TILE * TILES + tl.arange(0, ROW_TILE)
    block = tl.program_id(1)
    columns = block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    totals = product_tiles(x_ptr, weight_ptr, rows, columns, 0, M, N, K, SPLIT, BLOCK_K, TILES, WHOLE)
    for tile in tl.static_range(TILES):
        m = rows + tile * ROW_TILE
        values = _logits(totals[tile], scales_ptr, base_ptr, base_stride, m, columns, M, N)
        index = m * tl.num_programs(1) + block
        top = tl.max(values, 0)
        tl.store(sums_ptr + index, tl.sum(tl.exp(values - top[None, :]), 0), mask=m < M)
        for rank in range(COUNT):
            best, column = _best_of(values, columns)
            tl.store(values_ptr + index * COUNT + rank, best, mask=m < M)
            tl.store(columns_ptr + index * COUNT + rank, column, mask=m < M)
            values = tl.where(columns[:, None] == column[None, :], float("-inf"), values)


@triton.jit
def _merge_kernel(
    values_ptr, columns_ptr, out_values_ptr, out_columns_ptr, count, COUNT: tl.constexpr, CHUNK: tl.constexpr
):
    """Writes the COUNT best candidates of a chunk, best first. A row has `count` candidates in total."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(values_ptr + row * count + index, mask=index < count, other=float("-inf"))
    columns = tl.load(columns_ptr + row * count + index, mask=index < count, other=_NO_COLUMN)
    out = (row * tl.num_programs(1) + chunk) * COUNT
    for rank in range(COUNT):
        best = tl.max(values, 0)
        column = tl.min(tl.where(values == best, columns, _NO_COLUMN), 0)
        tl.store(out_values_ptr + out + rank, best)
        tl.store(out_columns_ptr + out + rank, column)
        is_selected = columns == column
        values = tl.where(is_selected, float("-inf"), values)
        columns = tl.where(is_selected, _NO_COLUMN, columns)


@triton.jit
def _total_kernel(values_ptr, sums_ptr, out_ptr, blocks, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """Writes a row's log-sum-exp, from each block's largest logit and its sum of exp(logit - largest logit)."""
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    tops = tl.load(values_ptr + (row * blocks + index) * COUNT, mask=index < blocks, other=float("-inf"))
    sums = tl.load(sums_ptr + row * blocks + index, mask=index < blocks, other=0.0)
    top = tl.max(tops, 0)
    tl.store(out_ptr + row, top + tl.log(tl.sum(sums * tl.exp(tops - top), 0)))


def best_tokens(x: Tensor, head: Head, count: int, base: Tensor | None) -> BestTokens:
    """Implements `kernels.lm_head.best_tokens` on CUDA; that function has checked the arguments."""
    (M, K), V, blocks = x.shape, head.data.shape[0], _num_blocks(head)
    values = torch.empty(M, blocks, count, dtype=torch.float32, device=x.device)
    columns = torch.empty(M, blocks, count, dtype=torch.int64, device=x.device)
    sums = torch.empty(M, blocks, dtype=torch.float32, device=x.device)
    log_sums = torch.empty(M, dtype=torch.float32, device=x.device)
    if M:
        grid = ProductGrid.of(x, head.data, 1)
        _best_kernel[grid.programs](
            x,
            head.data,
            head.scales,
            base,
            values,
            columns,
            sums,
            M,
            V,
            K,
            0 if base is None else base.stride(0),
            COUNT=count,
            **grid.options(K),
        )
        _total_kernel[(M,)](values, sums, log_sums, blocks, COUNT=count, BLOCK=triton.next_power_of_2(blocks))
    while columns.shape[1] > 1:
        values, columns = _merged(values, columns)
    columns = columns.flatten(1).clamp(max=V - 1)  # if all scores are NaN, the columns are _NO_COLUMN
    return BestTokens(values.flatten(1), columns if head.vocab is None else head.vocab[columns], log_sums)


def _merged(values: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Selects the best k of each chunk of candidates: [M, n, k] -> [M, ceil(n k / chunk), k]."""
    M, groups, count = values.shape
    chunk = min(_CHUNK, triton.next_power_of_2(groups * count))
    chunks = -(-groups * count // chunk)
    out_values = values.new_empty(M, chunks, count)
    out_columns = columns.new_empty(M, chunks, count)
    if M:
        _merge_kernel[(M, chunks)](values, columns, out_values, out_columns, groups * count, COUNT=count, CHUNK=chunk)
    return out_values, out_columns
