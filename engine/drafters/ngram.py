"""Prompt lookup: proposes the tokens that followed the same last tokens earlier in the request.

The longest match wins, and the latest among equal ones. A token proposed at depth d is supported by d - 1 more matching
tokens than the first. The acceptance rate of proposals with this number of matching tokens determines the survival.

Source: Saxena 2023, "Prompt lookup decoding".
"""

from collections.abc import Sequence as Many

from engine.draft import Draft, chain
from engine.drafters.base import Drafter, Pass
from engine.drafters.record import Record
from engine.drafters.suffix_index import LONGEST, SuffixIndex
from engine.sequence import Sequence

_MAX_DEPTH = 12
_ROOM = 4096  # index space for the answer; a longer answer overwrites the beginning of the prompt
_ASSUMED = (0.0, 0.3, 0.5, 0.7, 0.85, 0.9)  # assumed rate by the bit length of the number of matching tokens

_Kind = tuple[int, bool]  # that bit length; whether the request samples


class NgramDrafter(Drafter):
    name = "ngram"
    max_depth = _MAX_DEPTH

    def __init__(self) -> None:
        self._indexes: dict[str, SuffixIndex] = {}
        self._record = Record()

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        return [self._propose(sequence, budget) for sequence in sequences]

    def observe(self, done: Pass) -> None:
        """Indexes prompts while they are prefilled, so that a long prompt does not delay the first draft."""
        for kept in done.kept:
            self._read(kept.sequence, kept.position + len(kept.rows))

    def forget(self, request_id: str) -> None:
        self._indexes.pop(request_id, None)
        self._record.forget(request_id)

    def _read(self, sequence: Sequence, end: int) -> SuffixIndex:
        request_id = sequence.request.request_id
        index = self._indexes.get(request_id)
        if index is None:
            capacity = len(sequence.tokens) + min(sequence.num_remaining, _ROOM)
            index = self._indexes[request_id] = SuffixIndex(capacity)
        index.extend(sequence.tokens[index.num_tokens : end])
        return index

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        request_id, tokens = sequence.request.request_id, sequence.tokens
        index = self._read(sequence, len(tokens))
        self._record.settle(request_id, tokens)
        found = index.matches(tokens[-LONGEST:], min(budget, _MAX_DEPTH), places=1)
        agreement, guessed = found[0] if found else (0, ())
        sampled = sequence.request.sampling.temperature > 0.0
        survival: list[float] = []
        kinds: list[_Kind] = []
        above = 1.0
        for depth in range(len(guessed)):
            kind = (min((agreement + depth).bit_length(), len(_ASSUMED) - 1), sampled)
            above *= self._record.rate(kind, _ASSUMED[kind[0]])
            kinds.append(kind)
            survival.append(above)
        draft = chain(guessed, survival)
        self._record.claim(request_id, len(tokens), draft, kinds)
        return draft
