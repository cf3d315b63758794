"""Grows draft trees in which the candidates below a node depend on the node's token."""

import heapq

import numpy as np
from numpy.typing import NDArray

from engine.draft import Draft


class PairTable:
    """The candidates below each candidate of the previous depth.

    tokens: [depths][P]. Token ids of the P candidates of each depth, which are the parents of the next depth.
    children, chances: [depths, P, k]. Entry [d, p] has the k likeliest children of token p of depth d - 1, which are at
        depth d: their token ids and probabilities, best first. At depth 0, the entries of all p are the anchor's.
    """

    def __init__(self, tokens: list[list[int]], children: NDArray[np.int64], chances: NDArray[np.float32]) -> None:
        self._indices = [{token: index for index, token in enumerate(depth)} for depth in tokens]
        self._children, self._chances = children, chances
        self.num_depths = len(tokens)

    def candidates(self, depth: int, parent_token: int) -> tuple[list[int], list[float]]:
        """Returns token ids at `depth` and their probabilities. `parent_token` is ignored at depth 0."""
        index = self._indices[depth - 1][parent_token] if depth else 0
        return self._children[depth, index].tolist(), self._chances[depth, index].tolist()


def grow_conditional_tree(table: PairTable, budget: int) -> Draft:
    """Returns the `budget` likeliest nodes of the tree. The search is the same as in engine.draft.grow_tree."""
    tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    candidates: dict[int, tuple[list[int], list[float]]] = {}  # candidates below each node
    heap: list[tuple[float, int, int, int]] = []  # (-survival, depth, rank, parent)

    def offer(depth: int, rank: int, parent: int) -> None:
        if depth == table.num_depths:
            return
        if parent not in candidates:
            candidates[parent] = table.candidates(depth, tokens[parent] if parent >= 0 else -1)
        chances = candidates[parent][1]
        if rank < len(chances):
            parent_survival = survival[parent] if parent >= 0 else 1.0
            heapq.heappush(heap, (-parent_survival * chances[rank], depth, rank, parent))

    offer(0, 0, -1)
    while heap and len(tokens) < budget:
        negative, depth, rank, parent = heapq.heappop(heap)
        tokens.append(candidates[parent][0][rank])
        parents.append(parent)
        survival.append(-negative)
        offer(depth + 1, 0, len(tokens) - 1)
        offer(depth, rank + 1, parent)
    return Draft(tuple(tokens), tuple(parents), tuple(survival))
