"""Ranks draft tokens with the noise that the target will use for sampling, and estimates how likely each is accepted.

The survival of a token is the estimated probability that the target accepts it. value_i is the drafter's logit of token
i, log_sum the log-sum-exp of all the row's logits, and T the request's temperature:

    T = 0   survival_i = exp(value_i - log_sum)
    T > 0   score_i = value_i + T gumbel(seed, position, token_i), or -inf if the request's filters exclude token i;
            survival_i = sum_j exp(value_j - log_sum) * softmax_i(score)

j and the softmax run over the k best tokens of the row, which `BestTokens` holds.

Candidates are sorted in descending order of value (T = 0) or score (T > 0). Equal candidates keep their order.

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
    survival = torch.exp(values - best.log_sums.unsqueeze(-1))
    greedy = (rows.temperatures == 0.0).unsqueeze(-1)
    temperature = torch.where(greedy, 1.0, rows.temperatures.unsqueeze(-1)).float()
    probabilities = torch.softmax(values / temperature, dim=-1)
    # A token is kept if the tokens before it have a total probability of less than top_p.
    kept = probabilities.cumsum(-1) - probabilities < rows.top_ps.unsqueeze(-1).float()
    kept &= probabilities >= rows.min_ps.unsqueeze(-1).float() * probabilities[:, :1]
    rank = torch.arange(values.shape[1], device=device)
    kept &= (rows.top_ks.unsqueeze(-1) == 0) | (rank < rows.top_ks.unsqueeze(-1))
    seeds = [seed % 2**64 for seed in rows.seeds.tolist()]
    noise = gumbel_rows_reference(seeds, rows.positions.tolist(), best.tokens).float()
    scores = (values + temperature * noise).masked_fill(~kept, -torch.inf)
    survival = torch.where(greedy, survival, survival.sum(-1, keepdim=True) * scores.softmax(-1)).clamp(max=1.0)
    order = torch.where(greedy, values, scores).argsort(dim=-1, descending=True, stable=True)
    return Candidates(best.tokens.gather(-1, order), survival.gather(-1, order))


def candidates(best: BestTokens, rows: RowSampling) -> Candidates:
    """Returns the candidates of M rows. best: at most 32 tokens per row, sorted by descending logit.

    Raises: ValueError: shapes or dtypes do not fit.
    """
    M, k = best.values.shape
    if k > MAX_COUNT:
        raise ValueError(f"rows may have at most {MAX_COUNT} tokens, got {k}")
    check_tensor(best.values, "values", (M, k), torch.float32)
    check_tensor(best.tokens, "tokens", (M, k), torch.int64)
    check_tensor(best.log_sums, "log_sums", (M,), torch.float32)
    rows.check(M)
    if best.values.is_cuda:
        from kernels.cuda.candidates import candidates as launch  # imported here, because triton requires CUDA

        return launch(best, rows)
    return candidates_reference(best, rows)
