"""Which draft nodes are kept: those on the walk down along children that equal the token sampled at their parent.

The sampled token depends on logits, seed and position alone (kernels/sampling.py), so what is kept, followed by the
first token that no child guessed, is what plain decoding would have produced.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.draft import Draft
from engine.request import SamplingParams, TokenLogprob
from kernels.sampling import sample_token


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: kept nodes, top down. tokens: theirs and the one the target adds, so one longer."""

    path: tuple[int, ...]
    tokens: tuple[int, ...]


def verify(logits: Tensor, draft: Draft, sampling: SamplingParams, position: int) -> Verdict:
    """logits [1 + N, V] float32: of the last committed token, then of each node. `position`: of the next token."""
    children = {place: node for node, place in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    greedy = logits.argmax(-1).tolist() if sampling.temperature == 0.0 else None
    path: list[int] = []
    tokens: list[int] = []
    node = -1
    while True:
        row = node + 1
        token = greedy[row] if greedy is not None else choose(logits[row], sampling, position + len(path))
        tokens.append(token)
        child = children.get((node, token))
        if child is None:
            return Verdict(tuple(path), tuple(tokens))
        path.append(child)
        node = child


def choose(logits: Tensor, sampling: SamplingParams, position: int) -> int:
    """logits [V] float32 -> the token at `position`."""
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
    """logits [V] float32 -> log-probabilities of `token` and of the `count` best, before temperature and filters."""
    logprobs = torch.log_softmax(logits, dim=-1)
    best = logprobs.topk(count)
    top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    return TokenLogprob(token, float(logprobs[token]), top)
