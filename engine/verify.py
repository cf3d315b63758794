"""Verification: keeps the path of draft nodes whose tokens equal the tokens that are sampled at their parents.

The sampled token depends only on logits, seed, position and preceding tokens (kernels/sampling.py, engine/adjust.py).
So the kept tokens, followed by the first sampled token that no child proposes, are the tokens of plain decoding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.adjust import Adjuster, needs_adjusting
from engine.draft import Draft
from engine.request import SamplingParams, TokenLogprob
from engine.sequence import Sequence
from kernels.sampling import finite_rows, greedy_tokens, sample_token


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: kept nodes, top down. tokens: the tokens of the kept nodes and one more token, sampled from the target.

    failed: the logits for this additional token are not finite, so `tokens` has only the tokens of the kept nodes.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    failed: bool = False


def verify(logits: Tensor, draft: Draft, sequence: Sequence, eos_token_ids: frozenset[int]) -> Verdict:
    """Samples tokens from the last committed token downwards, until no child has the sampled token.

    On the CPU only the rows on the path are read. On a GPU, the host has to wait for every result. All rows are
    therefore tested for NaN and infinity at once, and greedy tokens without adjustments are computed at once.

    Args:
        logits: [1 + N, V] float32 for N nodes, not modified. Row 0 follows the last committed token, row 1 + i node i.
        eos_token_ids: tokens that end an answer, unless the request ignores them.
    """
    children = {edge: node for node, edge in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    sampling = sequence.request.sampling
    adjuster = Adjuster(sequence, eos_token_ids) if needs_adjusting(sequence) else None
    at_once = logits.device.type != "cpu"
    finite = finite_rows(logits) if at_once else None
    greedy = greedy_tokens(logits) if at_once and sampling.temperature == 0.0 and adjuster is None else None
    path: list[int] = []
    tokens: list[int] = []
    node = -1  # the last committed token, as in Draft.parents
    while True:
        row = node + 1
        if not (finite[row] if finite is not None else finite_rows(logits[row : row + 1])[0]):
            return Verdict(tuple(path), tuple(tokens), failed=True)
        if greedy is not None:
            token = greedy[row]
        else:
            adjusted = logits[row] if adjuster is None else adjuster.adjust(logits[row])
            token = sample(adjusted, sampling, len(sequence.tokens) + len(path))
        tokens.append(token)
        if adjuster is not None:
            adjuster.accept(token)
        child = children.get((node, token))
        if child is None:
            return Verdict(tuple(path), tuple(tokens))
        path.append(child)
        node = child


def sample(logits: Tensor, sampling: SamplingParams, position: int) -> int:
    """Samples the token at `position` from adjusted logits, [V] float32."""
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
    """Returns the log-probabilities of `token` and of the `count` likeliest tokens, without adjustments and filters.

    logits: [V] float32.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    best = logprobs.topk(count)
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), top)
