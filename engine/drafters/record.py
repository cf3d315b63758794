"""Counts how often a drafter's claims are right, by kind.

A claim is a draft node whose parent is right: it claims that its token is the next one. After the pass the next token
is known, also if the node was not verified, so every claim is counted as right or wrong.
"""

from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Many

from engine.draft import Draft

_PRIOR = 10.0  # weight of the assumed rate, in claims
_MEMORY = 2000.0  # when a kind has this many claims, its counts are halved


class Record:
    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}  # kind -> right, all
        self._open: dict[str, tuple[int, Draft, Many[Hashable]]] = {}  # request -> number of tokens, draft, kinds

    def rate(self, kind: Hashable, assumed: float) -> float:
        """Probability that a claim of this kind is right; `assumed` if none has been counted."""
        right, count = self._counts.get(kind, (0.0, 0.0))
        return (right + _PRIOR * assumed) / (count + _PRIOR)

    def claim(self, request_id: str, num_tokens: int, draft: Draft, kinds: Many[Hashable]) -> None:
        """Records a draft proposed when the request had `num_tokens` tokens; kinds: the kind of each node."""
        self._open[request_id] = (num_tokens, draft, kinds)

    def settle(self, request_id: str, tokens: Many[int]) -> None:
        """Counts which of the request's last claims were right; `tokens`: all its tokens now."""
        if request_id in self._open:
            num_tokens, draft, kinds = self._open.pop(request_id)
            for node, right in _settled(draft, tokens[num_tokens:]):
                self._count(kinds[node], right)

    def forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    def _count(self, kind: Hashable, right: bool) -> None:
        before, count = self._counts.get(kind, (0.0, 0.0))
        if count >= _MEMORY:
            before, count = before / 2, count / 2
        self._counts[kind] = (before + right, count + 1)


def _settled(draft: Draft, came: Many[int]) -> Iterator[tuple[int, bool]]:
    """Yields the nodes with a right parent, and whether they are right; `came`: the tokens after the draft's root."""
    depths = {-1: 0}  # depths of the right nodes
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        depth = depths.get(parent)
        if depth is not None and depth < len(came):
            right = token == came[depth]
            if right:
                depths[node] = depth + 1
            yield node, right
