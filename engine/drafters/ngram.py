"""Prompt lookup: finds an earlier occurrence of the request's last tokens and proposes the tokens that followed it.

The longest match is used, and of equally long matches the latest. A proposed token at depth d follows the matching
tokens and d - 1 proposed tokens. The longer this sequence is, the likelier the proposed token is right. The survival of
a token is computed from the observed acceptance rates of earlier proposals that followed about as many tokens.

Source: Saxena 2023, "Prompt lookup decoding".
"""

from collections.abc import Sequence as Many

from engine.draft import Draft, chain
from engine.drafters.base import Drafter, Pass
from engine.drafters.record import Record
from engine.drafters.suffix_index import LONGEST, SuffixIndex
from engine.sequence import Sequence

_MAX_DEPTH = 12
_MAX_OUTPUT = 4096  # output tokens for which the index has room; further tokens overwrite the beginning of the prompt
_ASSUMED = (0.0, 0.3, 0.5, 0.7, 0.85, 0.9)  # assumed acceptance rate by bit length of the number of matching tokens

_Kind = tuple[int, bool]  # bit length of the number of matching tokens; whether the temperature is above 0


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
            capacity = len(sequence.tokens) + min(sequence.num_remaining, _MAX_OUTPUT)
            index = self._indexes[request_id] = SuffixIndex(capacity)
        index.extend(sequence.tokens[index.num_tokens : end])
        return index

    def _propose(self, sequence: Sequence, budget: int) -> Draft:
        request_id, tokens = sequence.request.request_id, sequence.tokens
        index = self._read(sequence, len(tokens))
        self._record.settle(request_id, tokens)
        matches = index.matches(tokens[-LONGEST:], min(budget, _MAX_DEPTH), enough=1)
        num_matching, proposed = matches[0] if matches else (0, ())
        sampled = sequence.request.sampling.temperature > 0.0
        survival: list[float] = []
        kinds: list[_Kind] = []
        path_survival = 1.0
        for depth in range(len(proposed)):
            kind = (min((num_matching + depth).bit_length(), len(_ASSUMED) - 1), sampled)
            path_survival *= self._record.rate(kind, _ASSUMED[kind[0]])
            kinds.append(kind)
            survival.append(path_survival)
        draft = chain(proposed, survival)
        self._record.claim(request_id, len(tokens), draft, kinds)
        return draft
