"""Turns the drafts of any drafter into chains or trees, so that the verification of both shapes can be tested.

chain   only the path from the root to the deepest node; if several nodes are deepest, to the likeliest of them
tree    the draft with an additional sibling of every node, which has another token
"""

import collections.abc
from collections.abc import Callable

from engine.cache.kv_cache import KVCache
from engine.draft import Draft
from engine.drafters.base import Drafter, Pass
from engine.sequence import Sequence


def as_chain(draft: Draft) -> Draft:
    """Returns the path to the likeliest of the deepest nodes."""
    if not len(draft):
        return draft
    depths = draft.depths()
    return draft.only(draft.path(max(range(len(draft)), key=lambda node: (depths[node], draft.survival[node]))))


def as_tree(draft: Draft) -> Draft:
    """Adds to every node a sibling leaf with the next token id and half the node's survival probability.

    The draft budget goes to the nodes with the highest survival probabilities. The siblings' probabilities are high
    enough that the budget includes some of them.
    """
    tokens, parents, survival = list(draft.tokens), list(draft.parents), list(draft.survival)
    existing = set(zip(parents, tokens, strict=True))
    for node in range(len(draft)):
        sibling = (draft.parents[node], draft.tokens[node] + 1)
        if sibling not in existing:
            existing.add(sibling)
            parents.append(sibling[0])
            tokens.append(sibling[1])
            survival.append(draft.survival[node] / 2)
    return Draft(tuple(tokens), tuple(parents), tuple(survival))


class ShapedDrafter(Drafter):
    def __init__(self, drafter: Drafter, shape: Callable[[Draft], Draft], drafter_budget: Callable[[int], int]) -> None:
        """`drafter_budget` returns how many nodes of the draft budget `drafter` may use; `shape` may add others."""
        self.name, self.max_depth = drafter.name, drafter.max_depth
        self.tap_layers, self.slot_bytes = drafter.tap_layers, drafter.slot_bytes
        self._drafter, self._shape, self._drafter_budget = drafter, shape, drafter_budget

    def prepare(self, cache: KVCache) -> None:
        self._drafter.prepare(cache)

    def propose(self, sequences: collections.abc.Sequence[Sequence], budget: int) -> list[Draft]:
        return [self._shape(draft) for draft in self._drafter.propose(sequences, self._drafter_budget(budget))]

    def observe(self, done: Pass) -> None:
        self._drafter.observe(done)

    def forget(self, request_id: str) -> None:
        self._drafter.forget(request_id)


SHAPES: dict[str, Callable[[Drafter], Drafter]] = {
    "chain": lambda drafter: ShapedDrafter(drafter, as_chain, lambda budget: budget),
    # Half of the budget is left for the siblings.
    "tree": lambda drafter: ShapedDrafter(drafter, as_tree, lambda budget: (budget + 1) // 2),
}
