"""Selects tokens from the logits of M hidden states, without storing the logits [M, V].

    sample_rows:   argmax_v logits[m, v] / T_m + gumbel(seed_m, position_m, v)          (T = 0: argmax logits)
    best_tokens:   the `count` largest logits, their tokens, and log sum_v exp(logits[m, v])

logits[m, v] = x[m] data[v] scales[v] + base[m, v], where x[m] is the hidden state of row m and base is usually absent.
A Markov head uses the same formula: x[m] is the embedding (W1) of the last token, data is the head's output matrix
(W2), and base[m] are the logits of the drafter.

Source: Gumbel coupling as in kernels/sampling.py; Markov head: DSpark, arXiv:2607.05147.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.checks import check_tensor
from kernels.linear import linear_reference
from kernels.philox import gumbel_rows_reference

MAX_COUNT = 32  # maximum `count` of `best_tokens`
_SIGN = 2**63  # for conversion of unsigned seeds to int64 with the same bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The rows of an LM head, one per token of its vocabulary.

    data: [V, K] in the dtype of x, int8 or float8_e4m3fn. scales: [V] float32.
    vocab: [V] int64, the token of each row; None if row v is token v.
    """

    data: Tensor
    scales: Tensor | None = None
    vocab: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Sampling parameters of M rows: temperatures [M] float64, seeds [M] int64 (64 bits), positions [M] int64."""

    temperatures: Tensor
    seeds: Tensor
    positions: Tensor

    @classmethod
    def of(
        cls, temperatures: Sequence[float], seeds: Sequence[int], positions: Sequence[int], device: torch.device
    ) -> "SampledRows":
        signed = [(seed + _SIGN) % 2**64 - _SIGN for seed in seeds]
        integers = torch.tensor((signed, list(positions)), dtype=torch.int64).to(device)
        return cls(torch.tensor(temperatures, dtype=torch.float64).to(device), *integers)


def _logits(x: Tensor, head: Head, base: Tensor | None) -> Tensor:
    logits = linear_reference(x, head.data, scales=head.scales)
    return logits if base is None else logits + base


def _token_ids(head: Head) -> Tensor:
    return torch.arange(head.data.shape[0], device=head.data.device) if head.vocab is None else head.vocab


def sample_rows_reference(x: Tensor, head: Head, rows: SampledRows, base: Tensor | None = None) -> Tensor:
    """Reference of `sample_rows`."""
    tokens = _token_ids(head)
    greedy = rows.temperatures == 0.0
    scores = _logits(x, head, base).double() / torch.where(greedy, 1.0, rows.temperatures).unsqueeze(1)
    seeds = [seed % 2**64 for seed in rows.seeds.tolist()]
    noise = gumbel_rows_reference(seeds, rows.positions.tolist(), tokens.expand(x.shape[0], -1))
    return tokens[(scores + noise.masked_fill(greedy.unsqueeze(1), 0.0)).argmax(-1)]


def sample_rows(x: Tensor, head: Head, rows: SampledRows, base: Tensor | None = None) -> Tensor:
    """Samples a token for each row. Among tokens with equal scores, the first in the head is chosen.

    Args:
        x: [M, K] contiguous, float32 or bfloat16.
        base: [M, V] float32. Each row must be contiguous.

    Returns: [M] int64.
    Raises: ValueError: shapes or dtypes do not fit.
    """
    _check(x, head, base)
    check_tensor(rows.temperatures, "temperatures", (x.shape[0],), torch.float64)
    check_tensor(rows.seeds, "seeds", (x.shape[0],), torch.int64)
    check_tensor(rows.positions, "positions", (x.shape[0],), torch.int64)
    if x.is_cuda:
        from kernels.cuda.lm_head import sample_rows as launch  # imported here, because triton requires CUDA

        return launch(x, head, rows, base)
    return sample_rows_reference(x, head, rows, base)


@dataclass(frozen=True, slots=True)
class BestTokens:
    """The k best tokens of each of M rows, best first. Tokens with equal logits have the order of the head's rows.

    values: [M, k] float32, the logits. tokens: [M, k] int64. log_sums: [M] float32, log-sum-exp of all logits of a row.
    """

    values: Tensor
    tokens: Tensor
    log_sums: Tensor


def best_tokens_reference(x: Tensor, head: Head, count: int, base: Tensor | None = None) -> BestTokens:
    """Reference of `best_tokens`."""
    logits = _logits(x, head, base)
    values, columns = torch.sort(logits, dim=-1, descending=True, stable=True)
    return BestTokens(values[:, :count], _token_ids(head)[columns[:, :count]], logits.logsumexp(-1))


def best_tokens(x: Tensor, head: Head, count: int, base: Tensor | None = None) -> BestTokens:
    """Returns the `count` best tokens of each row; for the other arguments see `sample_rows`.

    Raises: ValueError: shapes or dtypes do not fit, or count is not in 1..32, or exceeds the vocabulary.
    """
    _check(x, head, base)
    if not 1 <= count <= min(MAX_COUNT, head.data.shape[0]):
        raise ValueError(f"count must be in 1..{min(MAX_COUNT, head.data.shape[0])}, got {count}")
    if x.is_cuda:
        from kernels.cuda.lm_head import best_tokens as launch  # imported here, because triton requires CUDA

        return launch(x, head, count, base)
    return best_tokens_reference(x, head, count, base)


def _check(x: Tensor, head: Head, base: Tensor | None) -> None:
    V, K = head.data.shape
    check_tensor(x, "x", (None, K), x.dtype)
    check_tensor(head.data, "head", (V, K), head.data.dtype)
    if head.vocab is not None:
        check_tensor(head.vocab, "vocab", (V,), torch.int64)
    if head.scales is not None:
        check_tensor(head.scales, "scales", (V,), torch.float32)
    if base is not None and (base.shape != (x.shape[0], V) or base.dtype != torch.float32 or base.stride(1) != 1):
        raise ValueError(f"base must be float32 [{x.shape[0]}, {V}], got {base.dtype} {list(base.shape)}")
