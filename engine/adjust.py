"""Adjusts logits before the temperature is applied: adds biases, applies penalties and excludes tokens.

The order of the steps is the same as in vLLM:

    logits += bias                            for tokens in logit_bias
    logits /= repetition, or *= if negative   for tokens in the prompt or the answer
    logits -= frequency * count + presence    for tokens in the answer; count: how often the token occurs there
    logits = -inf                             for stop tokens until the answer has min_tokens tokens, and for tokens
                                              that the grammar or a used-up reasoning budget excludes

"The answer" is all generated text before the sampled position, including accepted draft nodes. The grammar overrides
min_tokens: if the grammar allows only the end of the answer, the answer ends.
"""

import math
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.draft import Draft
from engine.grammars.grammar import Constraint
from engine.sequence import Sequence
from engine.token_counts import TokenCounts


def needs_adjusting(sequence: Sequence) -> bool:
    """Returns whether the logits of the sequence's next tokens must be adjusted.

    If `min_tokens` is the only adjustment, nothing is adjusted once the answer has `min_tokens` tokens.
    """
    sampling = sequence.request.sampling
    return (
        bool(sampling.logit_bias)
        or sampling.repetition_penalty != 1.0
        or sampling.presence_penalty != 0.0
        or sampling.frequency_penalty != 0.0
        or sequence.num_generated < sampling.min_tokens
        or sampling.grammar is not None
        or (sampling.thinking is not None and sampling.thinking.budget is not None)
    )


def without_excluded(draft: Draft, sequence: Sequence) -> Draft:
    """Removes the nodes that the sequence's grammar excludes, because they cannot be accepted."""
    constraint = sequence.constraint
    if constraint is None or not draft:
        return draft
    _follow(constraint, sequence)
    kept = constraint.allowed_nodes(draft.tokens, draft.parents)
    return draft if len(kept) == len(draft) else draft.only(kept)


def _follow(constraint: Constraint, sequence: Sequence) -> None:
    """Passes the answer to the constraint, unless the constraint has accepted all of the answer's tokens already."""
    if constraint.num_accepted != sequence.num_generated:
        constraint.follow(sequence.tokens[len(sequence.request.prompt_token_ids) :])


class Adjuster:
    """Adjusts the logits along one path of a draft. For each position the caller calls `adjust`, samples a token from
    the result, and passes that token to `accept`.
    """

    def __init__(self, sequence: Sequence, eos_token_ids: frozenset[int]) -> None:
        sampling = sequence.request.sampling
        self._sequence = sequence
        self._sampling = sampling
        self._num_generated = sequence.num_generated
        self._counts: TokenCounts | None = None  # counts of the sequence's tokens; set when a penalty is applied
        self._stops = sorted(sampling.stop_token_ids | (frozenset() if sampling.ignore_eos else eos_token_ids))
        self._constraint = sequence.constraint
        if self._constraint is not None:
            _follow(self._constraint, sequence)

    def adjust(self, logits: Tensor) -> Tensor:
        """Returns the adjusted logits as a new tensor. logits: [V] float32, one per token of the vocabulary."""
        logits = _copy(logits)
        self._add_bias(logits)
        self._penalize(logits)
        if self._constraint is not None:
            _exclude(logits, self._constraint.allowed())
        if self._num_generated >= self._sampling.min_tokens:
            return logits
        stops = _ids([token for token in self._stops if token < len(logits)], logits)
        without_stops = logits.index_fill(0, stops, -math.inf)
        return without_stops if bool(without_stops.max() > -math.inf) else logits

    def accept(self, token: int) -> None:
        self._num_generated += 1
        if self._counts is not None:
            self._counts.accept(token)
        if self._constraint is not None:
            self._constraint.accept(token)

    def _add_bias(self, logits: Tensor) -> None:
        if self._sampling.logit_bias:
            tokens, biases = zip(*self._sampling.logit_bias, strict=True)
            logits[_ids(tokens, logits)] += torch.tensor(biases, device=logits.device)

    def _penalize(self, logits: Tensor) -> None:
        """Applies the penalties. Only logits of tokens that occur in the prompt or the answer are read and changed."""
        sampling = self._sampling
        subtracts = sampling.presence_penalty != 0.0 or sampling.frequency_penalty != 0.0
        if sampling.repetition_penalty == 1.0 and not subtracts:
            return
        counts = self._counts or self._up_to_date_counts(logits)
        penalized = logits[counts.ids]
        if sampling.repetition_penalty != 1.0:
            penalty = sampling.repetition_penalty
            penalized = torch.where(penalized > 0, penalized / penalty, penalized * penalty)
        if subtracts:
            in_answer = counts.in_answer[counts.ids]
            penalty_of_count = sampling.frequency_penalty * in_answer + sampling.presence_penalty
            penalized = torch.where(in_answer > 0, penalized - penalty_of_count, penalized)
        logits[counts.ids] = penalized

    def _up_to_date_counts(self, logits: Tensor) -> TokenCounts:
        sequence = self._sequence
        self._counts = sequence.token_counts = sequence.token_counts or TokenCounts(len(logits), logits.device)
        self._counts.follow(sequence.tokens, len(sequence.request.prompt_token_ids))
        return self._counts


def _ids(tokens: Iterable[int], logits: Tensor) -> Tensor:
    return torch.tensor(list(tokens), dtype=torch.int64, device=logits.device)


# These functions use NumPy on the CPU. For tensors as large as a vocabulary, torch wakes other threads, and waking them
# takes longer than the computation itself. Applying a grammar to 49152 logits took 168 us with torch and 35 us with
# NumPy, on average, on two busy cores of an AMD EPYC.


def _copy(logits: Tensor) -> Tensor:
    return torch.from_numpy(logits.numpy().copy()) if logits.device.type == "cpu" else logits.clone()


def _exclude(logits: Tensor, allowed: NDArray[np.bool_]) -> None:
    """Sets the logits of tokens that are not allowed to -inf.

    The length of `allowed` may differ from V, because tokenizer and model may have vocabularies of different sizes.
    """
    excluded = np.ones(len(logits), np.bool_)
    np.logical_not(allowed[: len(logits)], out=excluded[: len(allowed)])
    if logits.device.type == "cpu":
        np.copyto(logits.numpy(), -math.inf, where=excluded)
    else:
        logits.masked_fill_(torch.from_numpy(excluded).to(logits.device), -math.inf)
