"""A draft tree that grows level by level, for drafters that must compute a node before they can propose its children.

Each level adds candidates below the computed nodes. The likeliest of these candidates are computed next. In the end,
the likeliest of all candidates form the draft. They are a tree, because no node is likelier than its parent.

Source: Li et al. 2024, arXiv:2406.16858 (EAGLE-2).
"""

import heapq
from collections.abc import Sequence

from engine.draft import Draft

WIDTH = 4  # maximum number of nodes of a sequence that are computed per level; determines the number of scratch slots
CANDIDATES = 6  # number of children that a node may get
# A level is run only if it is expected to add this many accepted tokens per sequence. The value is the time that a
# level takes, as a fraction of the time of a pass of the target.
LEAST_GAIN = 0.15
LEAST_SURVIVAL = 0.01  # less likely nodes are neither computed nor verified


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
        """Adds candidates below a node, with their conditional probabilities. Node -1 is the sequence's last token."""
        parent_survival = self._survival[parent] if parent >= 0 else 1.0
        for token, probability in zip(tokens, probabilities, strict=True):
            survival = parent_survival * min(1.0, probability)
            if survival >= LEAST_SURVIVAL:
                self._tokens.append(token)
                self._parents.append(parent)
                self._survival.append(survival)

    def frontier(self, width: int) -> list[int]:
        """Returns at most `width` nodes of the newest level that `draft` would return now, likeliest first."""
        best = heapq.nlargest(self._budget, self._survival)  # survivals of the nodes of the current draft
        level = [node for node in range(self._level, len(self._tokens)) if self._survival[node] >= best[-1]]
        return heapq.nlargest(width, level, key=self._survival.__getitem__)

    def draft(self) -> Draft:
        ranked = sorted(range(len(self._tokens)), key=lambda node: -self._survival[node])
        whole = Draft(tuple(self._tokens), tuple(self._parents), tuple(self._survival))
        return whole.only(sorted(ranked[: self._budget]))
