"""Ranks a drafter's candidates on CUDA. One program per row computes each rank as the number of better candidates."""

import torch
import triton
import triton.language as tl

from kernels.candidates import Candidates, RowSampling
from kernels.cuda.lm_head import gumbel
from kernels.lm_head import BestTokens


@triton.jit
def _candidates_kernel(
    values_ptr,
    tokens_ptr,
    log_sums_ptr,
    temperatures_ptr,
    seeds_ptr,
    positions_ptr,
    top_ks_ptr,
    top_ps_ptr,
    min_ps_ptr,
    out_tokens_ptr,
    out_survival_ptr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK)
    inside = index < K
    values = tl.load(values_ptr + row * K + index, mask=inside, other=float("-inf"))
    tokens = tl.load(tokens_ptr + row * K + index, mask=inside, other=0)
    survival = tl.where(inside, tl.exp(values - tl.load(log_sums_ptr + row)), 0.0)
    scores = values
    exact_temperature = tl.load(temperatures_ptr + row)
    if exact_temperature > 0.0:
        temperature = exact_temperature.to(tl.float32)
        scaled = values / temperature
        weights = tl.where(inside, tl.exp(scaled - tl.max(scaled, 0)), 0.0)
        chances = weights / tl.sum(weights, 0)
        kept = tl.cumsum(chances, 0) - chances < tl.load(top_ps_ptr + row).to(tl.float32)
        kept = kept & (chances >= tl.load(min_ps_ptr + row).to(tl.float32) * tl.max(chances, 0))
        top_k = tl.load(top_ks_ptr + row)
        kept = kept & inside & ((top_k == 0) | (index < top_k))
        seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
        noise = gumbel(seed + tokens * 0, position + tokens * 0, tokens).to(tl.float32)  # `tokens * 0` broadcasts
        scores = tl.where(kept, values + temperature * noise, float("-inf"))
        weights = tl.exp(scores - tl.max(scores, 0))
        survival = tl.sum(survival, 0) * weights / tl.sum(weights, 0)
    survival = tl.minimum(survival, 1.0)
    better = (scores[None, :] > scores[:, None]) | (
        (scores[None, :] == scores[:, None]) & (index[None, :] < index[:, None])
    )
    rank = tl.sum((better & inside[None, :]).to(tl.int32), 1)
    tl.store(out_tokens_ptr + row * K + rank, tokens, mask=inside)
    tl.store(out_survival_ptr + row * K + rank, survival, mask=inside)


def candidates(best: BestTokens, rows: RowSampling) -> Candidates:
    """Implements `kernels.candidates.candidates` on CUDA; that function has checked the arguments."""
    M, k = best.values.shape
    out = Candidates(torch.empty_like(best.tokens), torch.empty_like(best.values))
    if M:
        _candidates_kernel[(M,)](
            best.values,
            best.tokens,
            best.log_sums,
            rows.temperatures,
            rows.seeds,
            rows.positions,
            rows.top_ks,
            rows.top_ps,
            rows.min_ps,
            out.tokens,
            out.survival,
            K=k,
            BLOCK=triton.next_power_of_2(k),
            num_warps=1,
        )
    return out
