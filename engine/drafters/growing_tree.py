"""A draft tree that grows level by level, for drafters that must run to know what follows a node.

Each level offers candidates under the nodes that were run; the likeliest of them are run next; at the end the likeliest
of all that were ever offered make the draft. A node is never likelier than its parent, so the best are always a tree.

Source: Li et al. 2024, arXiv:2406.16858 (EAGLE-2).
"""

import heapq
from collections.abc import Sequence

from engine.draft import Draft

WIDTH = 4  # nodes of a sequence that are run per level; scratch memory is sized by it
_LEAST_SURVIVAL = 0.01  # what is less likely is never verified, nor run


class GrowingTree:
    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._survival: list[float] = []
        self._level = 0  # first node of the newest level

    def token(self, node: int) -> int:
        return self._tokens[node]

    def parent(self, node: int) -> int:
        return self._parents[node]

    def survival(self, node: int) -> float:
        return self._survival[node]

    def start_level(self) -> None:
        self._level = len(self._tokens)

    def offer(self, parent: int, tokens: Sequence[int], probabilities: Sequence[float]) -> None:
        """Candidates under `parent` (-1: the last committed token), each with its probability given the parent."""
        above = self._survival[parent] if parent >= 0 else 1.0
        for token, probability in zip(tokens, probabilities, strict=True):
            survival = above * min(1.0, probability)
            if survival >= _LEAST_SURVIVAL:
                self._tokens.append(token)
                self._parents.append(parent)
                self._survival.append(survival)

    def frontier(self, width: int) -> list[int]:
        """At most `width` nodes of the newest level that are in the draft as it stands, likeliest first."""
        best = heapq.nlargest(self._budget, self._survival)
        level = [node for node in range(self._level, len(self._tokens)) if self._survival[node] >= best[-1]]
        return heapq.nlargest(width, level, key=self._survival.__getitem__)

    def draft(self) -> Draft:
        ranked = sorted(range(len(self._tokens)), key=lambda node: -self._survival[node])
        whole = Draft(tuple(self._tokens), tuple(self._parents), tuple(self._survival))
        return whole.only(sorted(ranked[: self._budget]))
