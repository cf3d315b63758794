"""Prompt lookup: propose what followed the same last tokens earlier in the request.

The longest n-gram wins, its latest occurrence first. How often each length proved right is counted over all requests
and gives the survival of a node at depth d as rate^d.

Source: Saxena 2023, "Prompt lookup decoding".
"""

from collections.abc import Sequence as Many

from engine.draft import EMPTY_DRAFT, Draft, chain
from engine.drafters.base import Drafter
from engine.sequence import Sequence

_MAX_DEPTH = 10
_SIZES = (5, 4, 3, 2)
_PRIOR_HITS, _PRIOR_TRIES = 3.0, 5.0  # what a rate is before anything was counted: 0.6
_MEMORY = 200.0  # tries after which old counts fade


class _Index:
    """For each n-gram of a sequence the position after its latest occurrence that is followed by something."""

    def __init__(self) -> None:
        self.next_position: dict[tuple[int, ...], int] = {}
        self.num_indexed = 0

    def extend(self, tokens: list[int]) -> None:
        for end in range(max(self.num_indexed, 1), len(tokens)):
            for size in _SIZES:
                if end >= size:
                    self.next_position[tuple(tokens[end - size : end])] = end
        self.num_indexed = len(tokens)


class NgramDrafter(Drafter):
    name = "ngram"
    max_depth = _MAX_DEPTH

    def __init__(self) -> None:
        self._indexes: dict[str, _Index] = {}
        self._last: dict[str, tuple[int, int, int]] = {}  # request -> (size, length of tokens then, proposed token)
        self._hits = dict.fromkeys(_SIZES, _PRIOR_HITS)
        self._tries = dict.fromkeys(_SIZES, _PRIOR_TRIES)

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        return [self._propose(sequence, budget) for sequence in sequences]

    def forget(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)
        self._last.pop(request_id, None)

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        request_id, tokens = sequence.request.request_id, sequence.tokens
        self._learn(request_id, tokens)
        index = self._indexes.setdefault(request_id, _Index())
        index.extend(tokens)
        for size in _SIZES:
            start = index.next_position.get(tuple(tokens[-size:])) if len(tokens) > size else None
            if start is not None:
                guessed = tokens[start : start + min(budget, _MAX_DEPTH)]
                rate = self._hits[size] / self._tries[size]
                self._last[request_id] = (size, len(tokens), guessed[0])
                return chain(guessed, [rate**depth for depth in range(1, len(guessed) + 1)])
        return EMPTY_DRAFT

    def _learn(self, request_id: str, tokens: list[int]) -> None:
        """Was the first token proposed last time right?"""
        if request_id not in self._last:
            return
        size, length, guessed = self._last.pop(request_id)
        if len(tokens) > length:
            if self._tries[size] > _MEMORY:
                self._tries[size] /= 2
                self._hits[size] /= 2
            self._tries[size] += 1
            self._hits[size] += tokens[length] == guessed
