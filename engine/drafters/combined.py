"""Combines several drafters: merges their trees and calibrates their probabilities by observed acceptance.

Equal paths are merged. Each drafter gives each node one of three values: the conditional probability survival(node) /
survival(parent); _ABSENT, if it proposes other tokens below the parent; or _NO_OPINION, if it proposes nothing below
the parent. The kind of a node is the tuple of these values, with probabilities rounded to a scale. The acceptance rate
of each kind is measured, so nothing has to be assumed about how often the drafters agree:

    survival(node) = survival(parent) * rate(kind)

Before the first node of a kind has been observed, the kind's rate is the highest of its probabilities. An estimate that
treats the drafters as independent is too high: for a trained drafter combined with `suffix` on word problems, it
predicted 2.16 accepted tokens per pass, and 1.92 were measured; the observed rates predicted 1.99, and 1.91 were
measured."""

import bisect
import logging
from collections.abc import Sequence as Many

from engine.cache.kv_cache import KVCache
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Pass, split_taps
from engine.drafters.record import Record
from engine.sequence import Sequence

logger = logging.getLogger(__name__)

_SCALE = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)  # bounds between the rounded probabilities
_ABSENT = 0.0  # the drafter has other candidates below the parent, but not this node
_NO_OPINION = -1.0  # the drafter has no candidates below the parent


class CombinedDrafter(Drafter):
    def __init__(self, drafters: Many[Drafter]) -> None:
        self.name = "+".join(drafter.name for drafter in drafters)
        self.max_depth = max(drafter.max_depth for drafter in drafters)
        self.tap_layers = tuple(layer for drafter in drafters for layer in drafter.tap_layers)
        self.slot_bytes = sum(drafter.slot_bytes for drafter in drafters)
        self._drafters = tuple(drafters)
        self._record = Record()

    def prepare(self, cache: KVCache) -> None:
        for drafter in self._drafters:
            drafter.prepare(cache)

    def propose(self, sequences: Many[Sequence], budget: int) -> list[Draft]:
        drafts = [self._drafts(drafter, sequences, budget) for drafter in self._drafters]
        return [self._merged(sequence, trees, budget) for sequence, *trees in zip(sequences, *drafts, strict=True)]

    def observe(self, done: Pass) -> None:
        """Passes each drafter its own slice of the taps."""
        for drafter, own_pass in split_taps(done, self._drafters):
            try:
                drafter.observe(own_pass)
            except Exception:
                logger.exception("drafter %s failed to observe a pass", drafter.name)

    def forget(self, request_id: str) -> None:
        self._record.forget(request_id)
        for drafter in self._drafters:
            drafter.forget(request_id)

    def forget_past(self) -> None:
        for drafter in self._drafters:
            drafter.forget_past()

    def _drafts(self, drafter: Drafter, sequences: Many[Sequence], budget: int) -> list[Draft]:
        """Returns the drafter's drafts; if it fails, empty drafts, so that the other drafters continue."""
        try:
            return drafter.propose(sequences, budget)
        except Exception:
            logger.exception("drafter %s failed; the others continue", drafter.name)
            return [EMPTY_DRAFT] * len(sequences)

    def _merged(self, sequence: Sequence, drafts: Many[Draft], budget: int) -> Draft:
        request_id = sequence.request.request_id
        self._record.settle(request_id, sequence.tokens)
        sampled = sequence.request.sampling.temperature > 0.0
        tree = _Union(drafts)
        survival: list[float] = []
        kinds: list[tuple[object, ...]] = []
        for node, parent in enumerate(tree.parents):
            claims = tree.claims(node)
            kind = (sampled, *map(_rounded, claims))
            parent_survival = survival[parent] if parent >= 0 else 1.0
            survival.append(parent_survival * self._record.rate(kind, max(claims)))
            kinds.append(kind)
        draft = Draft(tuple(tree.tokens), tuple(tree.parents), tuple(survival))
        self._record.claim(request_id, len(sequence.tokens), draft, kinds)
        return draft.likeliest(budget)


def _rounded(claim: float) -> int:
    """Returns the index of the claim's interval in `_SCALE`, from 1; or 0 for _ABSENT and -1 for _NO_OPINION."""
    return 1 + bisect.bisect_right(_SCALE, claim) if claim > 0.0 else int(claim)


class _Union:
    """The union of all paths of several drafts; parents come before children."""

    def __init__(self, drafts: Many[Draft]) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._claims: list[list[float | None]] = []  # by node: each draft's probability, or None if it lacks the node
        self._inner: list[set[int]] = [set() for _ in drafts]  # by draft: nodes with children
        nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        for index, (draft, inner) in enumerate(zip(drafts, self._inner, strict=True)):
            union_nodes = [-1]  # node of the draft + 1 -> node of the union
            for token, parent, survival in zip(draft.tokens, draft.parents, draft.survival, strict=True):
                union_parent = union_nodes[parent + 1]
                node = nodes.setdefault((union_parent, token), len(self.tokens))
                if node == len(self.tokens):
                    self.tokens.append(token)
                    self.parents.append(union_parent)
                    self._claims.append([None] * len(drafts))
                union_nodes.append(node)
                inner.add(union_parent)
                parent_survival = draft.survival[parent] if parent >= 0 else 1.0
                self._claims[node][index] = survival / max(parent_survival, 1e-9)

    def claims(self, node: int) -> list[float]:
        """Returns each draft's probability of the node's token given the parent, or _ABSENT or _NO_OPINION."""
        parent = self.parents[node]
        return [
            claim if claim is not None else _ABSENT if parent in inner else _NO_OPINION
            for claim, inner in zip(self._claims[node], self._inner, strict=True)
        ]
