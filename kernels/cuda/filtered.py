"""Sampling with top-k, top-p and min-p on CUDA. Each row of logits is sorted; one program reads it in descending order.

The program adds probability masses in float64, block by block, always in this order. Which tokens are kept therefore
depends only on the row's logits and filters.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.candidates import RowSampling
from kernels.cuda.lm_head import gumbel

_BLOCK = 1024
_NO_TOKEN = tl.constexpr(2**31 - 1)  # larger than any token id, so that a minimum over tokens ignores it


@triton.jit
def _scaled(values_ptr, rank, limit, temperature):
    """Loads logits / T of the given ranks; -inf for ranks from `limit` on."""
    return tl.load(values_ptr + rank, mask=rank < limit, other=float("-inf")).to(tl.float64) / temperature


@triton.jit
def _filtered_kernel(
    values_ptr,
    order_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    out_ptr,
    V,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    values, order = values_ptr + row * V, order_ptr + row * V
    temperature = tl.load(temperatures_ptr + row)
    temperature = tl.where(temperature > 0.0, temperature, 1.0)
    top_k, top_p, min_p = tl.load(top_ks_ptr + row), tl.load(top_ps_ptr + row), tl.load(min_ps_ptr + row)
    limit = tl.where(top_k > 0, tl.minimum(top_k, V), V)
    top = tl.load(values).to(tl.float64) / temperature
    # min_p drops tokens whose logits / T are below `least`
    least = tl.where(min_p > 0.0, top + tl.log(tl.where(min_p > 0.0, min_p, 1.0)), float("-inf"))
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)

    total = tl.full((), 0.0, tl.float64)
    if top_p < 1.0:
        for start in range(0, limit, BLOCK):
            total += tl.sum(tl.exp(_scaled(values, start + tl.arange(0, BLOCK), limit, temperature) - top), 0)

    mass = tl.where(top_p < 1.0, top_p * total, float("inf"))  # tokens after this mass are dropped
    best = tl.full((), float("-inf"), tl.float64)
    winner = tl.full((), 0, tl.int64)
    before = tl.full((), 0.0, tl.float64)
    start = limit * 0
    while start < limit:
        rank = start + tl.arange(0, BLOCK)
        scaled = _scaled(values, rank, limit, temperature)
        weights = tl.exp(scaled - top)
        above = before + tl.cumsum(weights, 0) - weights
        kept = (rank < limit) & ((rank == 0) | (above < mass)) & (scaled >= least)
        tokens = tl.load(order + rank, mask=rank < limit, other=0)
        noise = gumbel(seed + tokens * 0, position + tokens * 0, tokens)  # `tokens * 0` broadcasts
        scores = tl.where(kept, scaled + noise, float("-inf"))
        block_best = tl.max(scores, 0)
        token = tl.min(tl.where(kept & (scores == block_best), tokens, _NO_TOKEN), 0)
        winner = tl.where((block_best > best) | ((block_best == best) & (token < winner)), token, winner)
        best = tl.maximum(best, block_best)
        before += tl.sum(weights, 0)
        # If a token is dropped, all tokens after it are dropped as well.
        start = tl.where(tl.sum(kept.to(tl.int32), 0) == BLOCK, start + BLOCK, limit)
    tl.store(out_ptr + row, winner)


def sample_filtered_rows(logits: Tensor, rows: RowSampling) -> Tensor:
    """Implements `kernels.filtered.sample_filtered_rows` on CUDA; that function has checked the arguments."""
    M, V = logits.shape
    out = torch.empty(M, dtype=torch.int64, device=logits.device)
    if M:
        values, order = logits.sort(dim=-1, descending=True, stable=True)
        _filtered_kernel[(M,)](
            values,
            order,
            rows.temperatures,
            rows.seeds,
            rows.positions,
            rows.top_ks,
            rows.top_ps,
            rows.min_ps,
            out,
            V,
            BLOCK=_BLOCK,
        )
    return out
