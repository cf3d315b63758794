"""Ranks the best tokens of a drafter's rows with the target's noise, and computes their survival probabilities.

    T = 0   survival_i = exp(value_i - total)
    T > 0   score_i = value_i + T gumbel(seed, position, token_i), -inf for tokens that the request's filters exclude;
            survival_i = P(one of these tokens) * softmax_i(score)

Candidates are sorted best first; equal ones keep their order.

Source: Gumbel coupling, Daliri, Musco and Suresh 2024, arXiv:2408.07978.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import check_tensor
from kernels.lm_head import MAX_COUNT, BestTokens
from kernels.philox import gumbel_rows_reference


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """The sampling parameters of M rows.

    temperatures, top_ps, min_ps: [M] float64. seeds (64 bits), positions, top_ks (0: no limit): [M] int64.
    """

    temperatures: Tensor
    seeds: Tensor
    positions: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_ps: Tensor

    def check(self, M: int) -> None:
        """Raises: ValueError: shapes or dtypes do not fit."""
        for name in ("temperatures", "top_ps", "min_ps"):
            check_tensor(getattr(self, name), name, (M,), torch.float64)
        for name in ("seeds", "positions", "top_ks"):
            check_tensor(getattr(self, name), name, (M,), torch.int64)


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of M rows, best first. tokens: [M, k] int64. survival: [M, k] float32, descending, in 0..1."""

    tokens: Tensor
    survival: Tensor


def candidates_reference(best: BestTokens, rows: RowSampling) -> Candidates:
    """Reference of `candidates`."""
    values, device = best.values, best.values.device
    survival = torch.exp(values - best.totals.unsqueeze(-1))
    cold = (rows.temperatures == 0.0).unsqueeze(-1)
    temperature = torch.where(cold, 1.0, rows.temperatures.unsqueeze(-1)).float()
    probabilities = torch.softmax(values / temperature, dim=-1)
    kept = probabilities.cumsum(-1) - probabilities < rows.top_ps.unsqueeze(-1).float()
    kept &= probabilities >= rows.min_ps.unsqueeze(-1).float() * probabilities[:, :1]
    place = torch.arange(values.shape[1], device=device)
    kept &= (rows.top_ks.unsqueeze(-1) == 0) | (place < rows.top_ks.unsqueeze(-1))
    seeds = [seed % 2**64 for seed in rows.seeds.tolist()]
    noise = gumbel_rows_reference(seeds, rows.positions.tolist(), best.tokens).float()
    scores = (values + temperature * noise).masked_fill(~kept, -torch.inf)
    survival = torch.where(cold, survival, survival.sum(-1, keepdim=True) * scores.softmax(-1)).clamp(max=1.0)
    order = torch.where(cold, values, scores).argsort(dim=-1, descending=True, stable=True)
    return Candidates(best.tokens.gather(-1, order), survival.gather(-1, order))


def candidates(best: BestTokens, rows: RowSampling) -> Candidates:
    """Ranks the best tokens [M, k <= 32], given best first.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, k = best.values.shape
    if k > MAX_COUNT:
        raise ValueError(f"rows may have at most {MAX_COUNT} tokens, got {k}")
    check_tensor(best.values, "values", (M, k), torch.float32)
    check_tensor(best.tokens, "tokens", (M, k), torch.int64)
    check_tensor(best.totals, "totals", (M,), torch.float32)
    rows.check(M)
    if best.values.is_cuda:
        from kernels.cuda.candidates import candidates as launch  # imported here, because triton requires CUDA

        return launch(best, rows)
    return candidates_reference(best, rows)
