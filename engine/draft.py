"""A draft: a tree of proposed tokens below the last committed token. A chain is a tree without branches."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

MAX_DEPTH = 64  # the longest path that kernels/cuda/attention.py supports


@dataclass(frozen=True, slots=True)
class Draft:
    """N nodes, parents before children.

    tokens: [N]. Proposed token of each node.
    parents: [N]. Index of the parent node, -1 for children of the last committed token.
    survival: [N]. Estimated probability that the node is accepted; never above the survival of its parent.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    survival: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.tokens) == len(self.parents) == len(self.survival):
            sizes = (len(self.tokens), len(self.parents), len(self.survival))
            raise ValueError(f"tokens, parents and survival must be of one length, got {sizes}")
        for node, parent in enumerate(self.parents):
            if not -1 <= parent < node:
                raise ValueError(f"parent of node {node} must be in -1..{node - 1}, got {parent}")
            if parent >= 0 and self.survival[node] > self.survival[parent]:
                raise ValueError(f"node {node} can't be likelier than its parent {parent}")

    def __len__(self) -> int:
        return len(self.tokens)

    def depths(self) -> list[int]:
        """Returns the depth of each node, [N]; children of the last committed token have depth 1."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """Returns the nodes from the child of the last committed token down to `node`."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def only(self, nodes: Sequence[int]) -> "Draft":
        """Returns the draft cut to these nodes, which must be ascending and include their parents."""
        index = {-1: -1} | {node: i for i, node in enumerate(nodes)}
        return Draft(
            tuple(self.tokens[node] for node in nodes),
            tuple(index[self.parents[node]] for node in nodes),
            tuple(self.survival[node] for node in nodes),
        )

    def likeliest(self, count: int) -> "Draft":
        """Returns the draft cut to its `count` likeliest nodes; of equally likely nodes the earlier ones are kept."""
        if len(self) <= count:
            return self
        # Parents are at least as likely as their children and come first, so every kept node keeps its parent.
        return self.only(sorted(sorted(range(len(self)), key=lambda node: -self.survival[node])[:count]))


EMPTY_DRAFT = Draft((), (), ())


def chain(tokens: Sequence[int], survival: Sequence[float]) -> Draft:
    return Draft(tuple(tokens), tuple(range(-1, len(tokens) - 1)), tuple(survival))


def grow_tree(tokens: Sequence[Sequence[int]], probabilities: Sequence[Sequence[float]], budget: int) -> Draft:
    """Returns the `budget` likeliest nodes of the tree in which all nodes of one depth have the same child tokens.

    Args:
        tokens: [depth][k]. Candidates of each depth, best first.
        probabilities: [depth][k]. Their probabilities, descending; a node's survival is the product along its path.

    The search is best-first: when a node is kept, its first child and its next sibling are pushed on the heap.
    Source: JetSpec, arXiv:2606.18394, and the earlier OPT-Tree.
    """
    kept_tokens: list[int] = []
    parents: list[int] = []
    survival: list[float] = []
    heap: list[tuple[float, int, int, int]] = []  # (-survival, depth, rank, parent)

    def offer(depth: int, rank: int, parent: int) -> None:
        if depth < len(tokens) and rank < len(tokens[depth]):
            parent_survival = survival[parent] if parent >= 0 else 1.0
            heapq.heappush(heap, (-parent_survival * probabilities[depth][rank], depth, rank, parent))

    offer(0, 0, -1)
    while heap and len(kept_tokens) < budget:
        negative, depth, rank, parent = heapq.heappop(heap)
        kept_tokens.append(tokens[depth][rank])
        parents.append(parent)
        survival.append(-negative)
        offer(depth + 1, 0, len(kept_tokens) - 1)
        offer(depth, rank + 1, parent)
    return Draft(tuple(kept_tokens), tuple(parents), tuple(survival))
