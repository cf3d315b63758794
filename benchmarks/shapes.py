"""Turns the drafts of any drafter into chains or trees, so that `benchmarks.equality` tests both with every drafter.

chain   only the path to the deepest node; to the likeliest one if several nodes are equally deep
tree    the draft, in which every node gets a sibling with another token
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

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
    """Adds a sibling for every node. Its token is the next id, and its survival is half of the node's.

    With this survival, some siblings are likely enough to be verified within the draft budget.
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


class Shaped(Drafter):
    def __init__(self, drafter: Drafter, shape: Callable[[Draft], Draft], drafter_budget: Callable[[int], int]) -> None:
        """drafter_budget: takes the draft budget and returns the number of nodes to request from the drafter."""
        self.name, self.max_depth = drafter.name, drafter.max_depth
        self.tap_layers, self.slot_bytes = drafter.tap_layers, drafter.slot_bytes
        self._drafter, self._shape, self._drafter_budget = drafter, shape, drafter_budget

    def prepare(self, cache: KVCache) -> None:
        self._drafter.prepare(cache)

    def propose(self, sequences: SequenceOf[Sequence], budget: int) -> list[Draft]:
        return [self._shape(draft) for draft in self._drafter.propose(sequences, self._drafter_budget(budget))]

    def observe(self, done: Pass) -> None:
        self._drafter.observe(done)

    def forget(self, request_id: str) -> None:
        self._drafter.forget(request_id)


SHAPES: dict[str, Callable[[Drafter], Drafter]] = {
    "chain": lambda drafter: Shaped(drafter, as_chain, lambda budget: budget),
    "tree": lambda drafter: Shaped(drafter, as_tree, lambda budget: (budget + 1) // 2),  # leaves room for siblings
}
