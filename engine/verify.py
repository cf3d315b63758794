"""Verification: keeps the draft nodes on the path whose tokens equal the tokens sampled at their parents.

The sampled token depends only on logits, seed, position and preceding tokens (kernels/sampling.py, engine/adjust.py).
So the kept tokens, followed by the first sampled token that no child proposes, are those of plain decoding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.adjust import Adjuster, needs_adjusting
from engine.draft import Draft
from engine.request import SamplingParams, TokenLogprob
from engine.sequence import Sequence
from kernels.sampling import greedy_tokens, sample_token


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: kept nodes, top down. tokens: their tokens and the one that the target adds, so one more."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]


def verify(logits: Tensor, draft: Draft, sequence: Sequence, eos_token_ids: frozenset[int]) -> Verdict:
    """Samples tokens along the path. Greedy rows without adjustments are computed all at once.

    Args:
        logits: [1 + N, V] float32, not modified. Row 0 is for the last committed token, row 1 + i for node i.
        eos_token_ids: tokens that end an answer, unless the request ignores them.
    """
    children = {place: node for node, place in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    sampling = sequence.request.sampling
    adjuster = Adjuster(sequence, eos_token_ids) if needs_adjusting(sampling) else None
    greedy = greedy_tokens(logits) if sampling.temperature == 0.0 and adjuster is None else None
    path: list[int] = []
    tokens: list[int] = []
    node = -1
    while True:
        row = node + 1
        if greedy is not None:
            token = greedy[row]
        else:
            adjusted = logits[row] if adjuster is None else adjuster.adjust(logits[row])
            token = choose(adjusted, sampling, len(sequence.tokens) + len(path))
        tokens.append(token)
        if adjuster is not None:
            adjuster.accept(token)
        child = children.get((node, token))
        if child is None:
            return Verdict(tuple(path), tuple(tokens))
        path.append(child)
        node = child


def choose(logits: Tensor, sampling: SamplingParams, position: int) -> int:
    """logits [V] float32, adjusted -> the token at `position`."""
    return sample_token(
        logits,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        min_p=sampling.min_p,
        seed=sampling.seed,
        position=position,
    )


def token_logprobs(logits: Tensor, token: int, count: int) -> TokenLogprob:
    """logits [V] float32 -> log-probabilities of `token` and of the `count` best, before any adjustment or filter."""
    logprobs = torch.log_softmax(logits, dim=-1)
    best = logprobs.topk(count)
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), top)
