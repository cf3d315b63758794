"""Measures acceptance rates of draft nodes by kind; each drafter defines its own kinds.

Each draft node predicts the token after its parent. If the parent is right, this token is known after the pass, even if
the node itself was not verified. So every such prediction, here called a claim, is counted as right or wrong.
"""

from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Many

from engine.draft import Draft

_PRIOR = 10.0  # the assumed rate has the weight of this many claims
_MEMORY = 2000.0  # when a kind has this many claims, its counts are halved, so that old claims lose weight


class Record:
    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}  # kind -> right claims, all claims
        self._pending: dict[str, tuple[int, Draft, Many[Hashable]]] = {}  # request id -> arguments of `claim`

    def rate(self, kind: Hashable, assumed: float) -> float:
        """Returns the probability that a claim of this kind is right; starts at `assumed`."""
        right, count = self._counts.get(kind, (0.0, 0.0))
        return (right + _PRIOR * assumed) / (count + _PRIOR)

    def claim(self, request_id: str, num_tokens: int, draft: Draft, kinds: Many[Hashable]) -> None:
        """Stores a draft until `settle`. num_tokens: length of the text before it. kinds: the kind of each node."""
        self._pending[request_id] = (num_tokens, draft, kinds)

    def settle(self, request_id: str, tokens: Many[int]) -> None:
        """Counts which claims of the request's last draft were right; `tokens`: all tokens of the request now."""
        if request_id in self._pending:
            num_tokens, draft, kinds = self._pending.pop(request_id)
            for node, right in _settled(draft, tokens[num_tokens:]):
                self._count(kinds[node], right)

    def forget(self, request_id: str) -> None:
        self._pending.pop(request_id, None)

    def _count(self, kind: Hashable, right: bool) -> None:
        before, count = self._counts.get(kind, (0.0, 0.0))
        if count >= _MEMORY:
            before, count = before / 2, count / 2
        self._counts[kind] = (before + right, count + 1)


def _settled(draft: Draft, next_tokens: Many[int]) -> Iterator[tuple[int, bool]]:
    """Yields each node whose parent was right, and whether the node is right; `next_tokens` follow the draft's root."""
    depths = {-1: 0}  # right node -> its depth; -1: the root
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        depth = depths.get(parent)
        if depth is not None and depth < len(next_tokens):
            right = token == next_tokens[depth]
            if right:
                depths[node] = depth + 1
            yield node, right
