"""How often a drafter's claims came true, by their kind.

A claim is a node of a draft whose parent came true: it says that its token comes next. After the pass the next token is
known, whether or not the node was verified, so every such claim is counted, right or wrong.
"""

from collections.abc import Hashable, Iterator
from collections.abc import Sequence as Many

from engine.draft import Draft

_PRIOR = 10.0  # claims that what is assumed of a kind counts for
_MEMORY = 2000.0  # claims of a kind after which what was counted fades by half


class Record:
    def __init__(self) -> None:
        self._counts: dict[Hashable, tuple[float, float]] = {}  # kind -> right, all
        self._open: dict[str, tuple[int, Draft, Many[Hashable]]] = {}  # request -> tokens then, draft, kinds

    def rate(self, kind: Hashable, assumed: float) -> float:
        """Probability that a claim of this kind comes true; `assumed` while none was counted."""
        right, count = self._counts.get(kind, (0.0, 0.0))
        return (right + _PRIOR * assumed) / (count + _PRIOR)

    def claim(self, request_id: str, num_tokens: int, draft: Draft, kinds: Many[Hashable]) -> None:
        """The draft proposed when the request had that many tokens; kinds: of each node."""
        self._open[request_id] = (num_tokens, draft, kinds)

    def settle(self, request_id: str, tokens: Many[int]) -> None:
        """Counts which of the request's last claims came true; `tokens`: all it has now."""
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
    """The nodes whose parent came true, and whether they did; `came`: the tokens that followed the draft's root."""
    depths = {-1: 0}  # of the nodes that came true
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        depth = depths.get(parent)
        if depth is not None and depth < len(came):
            right = token == came[depth]
            if right:
                depths[node] = depth + 1
            yield node, right
