"""Grows a tree whose guesses under a node depend on the node's token."""

import heapq

import numpy as np
from numpy.typing import NDArray

from engine.draft import Draft


class PairTable:
    """What follows each candidate of each depth.

    tokens: [depths][P]. Candidates of each depth, the parents of the next.
    children, chances: [depths, P, k]. Under parent p of the depth before (depth 0: the anchor, whatever p), best first,
        children among `tokens` of that depth.
    """

    def __init__(self, tokens: list[list[int]], children: NDArray[np.int64], chances: NDArray[np.float32]) -> None:
        self._places = [{token: place for place, token in enumerate(depth)} for depth in tokens]
        self._children, self._chances = children, chances
        self.num_depths = len(tokens)

    def under(self, depth: int, token: int) -> tuple[list[int], list[float]]:
        """Guesses at `depth` and their chances, `token` being the one before; any at depth 0."""
        place = self._places[depth - 1][token] if depth else 0
        return self._children[depth, place].tolist(), self._chances[depth, place].tolist()


def grow_conditional_tree(table: PairTable, budget: int) -> Draft:
    """The `budget` likeliest nodes, as engine.draft.grow_tree."""
    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    guesses: dict[int, tuple[list[int], list[float]]] = {}  # under each node
    heap: list[tuple[float, int, int, int]] = []  # (-survival, depth, rank, parent)

    def offer(depth: int, rank: int, parent: int) -> None:
        if depth == table.num_depths:
            return
        if parent not in guesses:
            guesses[parent] = table.under(depth, tokens[parent] if parent >= 0 else -1)
        chances = guesses[parent][1]
        if rank < len(chances):
            above = survival[parent] if parent >= 0 else 1.0
            heapq.heappush(heap, (-above * chances[rank], depth, rank, parent))

    offer(0, 0, -1)
    while heap and len(tokens) < budget:
        negative, depth, rank, parent = heapq.heappop(heap)
        tokens.append(guesses[parent][0][rank])
        parents.append(parent)
        survival.append(-negative)
        offer(depth + 1, 0, len(tokens) - 1)
        offer(depth, rank + 1, parent)
    return Draft(tuple(tokens), tuple(parents), tuple(survival))
