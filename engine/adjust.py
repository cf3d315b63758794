"""What a request does to the logits before temperature: bias, penalties, and tokens left out.

In vLLM's order:

    logits += bias                                            of the tokens named
    logits /= repetition   where positive, *= where not       of tokens in prompt or answer
    logits -= frequency * how often in the answer + presence  of tokens in the answer
    logits = -inf          tokens that would end the answer before min_tokens; what the grammar excludes

"The answer" is what stands before the position whose token is chosen, accepted draft nodes included. The grammar has
the last word: where it allows the end alone, min_tokens gives way.
"""

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.draft import Draft
from engine.request import SamplingParams
from engine.sequence import Sequence


def needs_adjusting(sampling: SamplingParams) -> bool:
    return (
        bool(sampling.logit_bias)
        or sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sampling.min_tokens > 0
        or sampling.grammar is not None
    )


def without_excluded(draft: Draft, sequence: Sequence) -> Draft:
    """Without the nodes that the sequence's grammar excludes: they would be verified in vain."""
    constraint = sequence.constraint
    if constraint is None or not draft:
        return draft
    constraint.follow(sequence.tokens[len(sequence.request.prompt_token_ids) :])
    kept = constraint.fitting(draft.tokens, draft.parents)
    return draft if len(kept) == len(draft) else draft.only(kept)


class Adjuster:
    """Walks along one path: `adjust` the logits of a position, choose its token, `accept` that, and so on."""

    def __init__(self, sequence: Sequence, eos_token_ids: frozenset[int]) -> None:
        sampling = sequence.request.sampling
        prompt = sequence.request.prompt_token_ids
        answer = sequence.tokens[len(prompt) :]
        self._sampling = sampling
        self._num_generated = len(answer)
        self._counts = Counter(answer)
        self._seen = set(sequence.tokens) if sampling.repetition_penalty != 1.0 else set()
        self._stops = sorted(sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else eos_token_ids))
        self._constraint = sequence.constraint
        if self._constraint is not None:
            self._constraint.follow(answer)

    def adjust(self, logits: Tensor) -> Tensor:
        """logits [V] float32 -> [V] float32, another tensor."""
        logits = logits.clone()
        self._add_bias(logits)
        self._penalize(logits)
        if self._constraint is not None:
            logits = torch.where(_mask(self._constraint.allowed(), logits), logits, -math.inf)
        if self._num_generated >= self._sampling.min_tokens:
            return logits
        longer = logits.index_fill(0, _ids([token for token in self._stops if token < len(logits)], logits), -math.inf)
        return longer if bool(longer.max() > -math.inf) else logits

    def accept(self, token: int) -> None:
        self._num_generated += 1
        self._counts[token] += 1
        if self._sampling.repetition_penalty != 1.0:
            self._seen.add(token)
        if self._constraint is not None:
            self._constraint.accept(token)

    def _add_bias(self, logits: Tensor) -> None:
        if self._sampling.logit_bias:
            tokens, biases = zip(*self._sampling.logit_bias, strict=True)
            logits[_ids(tokens, logits)] += torch.tensor(biases, device=logits.device)

    def _penalize(self, logits: Tensor) -> None:
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0:
            ids = _ids(sorted(self._seen), logits)
            values = logits[ids]
            penalty = sampling.repetition_penalty
            logits[ids] = torch.where(values > 0, values / penalty, values * penalty)
        if self._counts and (sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0):
            counts = torch.tensor(list(self._counts.values()), dtype=torch.float32, device=logits.device)
            logits[_ids(self._counts, logits)] -= sampling.frequency_penalty * counts + sampling.presence_penalty


def _ids(tokens: Iterable[int], logits: Tensor) -> Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64, device=logits.device)


def _mask(allowed: NDArray[np.bool_], logits: Tensor) -> Tensor:
    """[V] bool: a model may have rows beyond its tokenizer's vocabulary, or fewer."""
    mask = np.zeros(len(logits), np.bool_)
    mask[: len(allowed)] = allowed[: len(logits)]
    return torch.from_numpy(mask).to(logits.device)
