"""Turns a drafter's logits into candidates: the tokens that the target may sample next, with probabilities.

The target samples argmax(logits / T + gumbel(seed, position)). The noise is known before the target runs, so a drafter
ranks its best tokens with the same noise. If its logits equal the target's, the first candidate is the token that the
target samples, at any temperature. Noise is added only to the `count` likeliest tokens of the drafter. If the target
samples another token, which is rare, the draft is rejected there.

    survival_i = sum of the drafter's probabilities of the `count` tokens * softmax_i(logits + T gumbel)

T is the temperature; at T = 0 the survival is the drafter's own probability. The formula assumes that the drafter's
logits have an error of about one logit. engine/budget.py corrects the estimate by the observed acceptance.

Source: Gumbel coupling, Daliri, Musco and Suresh 2024, arXiv:2408.07978.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.request import SamplingParams
from kernels.philox import gumbel_rows
from kernels.top_k import top_k


@dataclass(frozen=True, slots=True)
class Candidates:
    """The k candidates of each of M rows, best first.

    tokens: [M, k] int64, ids of the target's vocabulary.
    survival: [M, k] float32. Probability that the target samples this token; 0 if the request's top-k, top-p or min-p
        exclude the token.
    """

    tokens: Tensor
    survival: Tensor


def choose(
    logits: Tensor,
    sampling: Many[SamplingParams],
    positions: Many[int],
    *,
    count: int,
    vocab: Tensor | None = None,
) -> Candidates:
    """Returns the `count` likeliest next tokens of each row, or all tokens if the vocabulary is smaller.

    Args:
        logits: [M, Vd] float32.
        sampling: [M]. The target's sampling parameters of each row.
        positions: [M]. Position of the next token in its sequence.
        vocab: [Vd] or [M, Vd] int64. The target's token id of each column of `logits`; None: the column's index.
    """
    values, index, masses = top_k(logits, min(count, logits.shape[-1]))  # [M, k], [M, k], [M] logsumexp of all logits
    tokens = index if vocab is None else vocab.expand(len(logits), -1).gather(-1, index)
    survival = torch.exp(values - masses.unsqueeze(-1))
    if not any(params.temperature for params in sampling):
        return Candidates(tokens, survival)
    scores = _noisy(values, tokens, sampling, positions)
    order = scores.argsort(-1, descending=True)
    survival = survival.sum(-1, keepdim=True) * scores.softmax(-1)
    return Candidates(tokens.gather(-1, order), survival.gather(-1, order))


def _noisy(values: Tensor, tokens: Tensor, sampling: Many[SamplingParams], positions: Many[int]) -> Tensor:
    """Returns logits + T gumbel [M, k], with -inf for tokens that the request's filters exclude."""
    device = values.device
    greedy = [params.temperature == 0.0 for params in sampling]
    temperature, top_p, min_p = torch.tensor(
        [
            (1.0, 1.0, 0.0) if plain else (params.temperature, params.top_p, params.min_p)
            for params, plain in zip(sampling, greedy, strict=True)
        ],
        device=device,
    ).T.unsqueeze(-1)  # [3, M, 1]
    probabilities = torch.softmax(values / temperature, dim=-1)
    before = probabilities.cumsum(-1) - probabilities  # total probability of the likelier tokens
    kept = (before < top_p) & (probabilities >= min_p * probabilities[:, :1])
    limits = [params.top_k or len(row) for params, row in zip(sampling, tokens, strict=True)]
    kept &= torch.arange(tokens.shape[1], device=device) < torch.tensor(limits, device=device).unsqueeze(-1)
    noise = gumbel_rows([params.seed for params in sampling], positions, tokens).float()
    scores = values + temperature * noise
    return torch.where(torch.tensor(greedy, device=device).unsqueeze(-1), values, scores.masked_fill(~kept, -torch.inf))
