"""How many nodes to draft and to verify: as many as pay for themselves.

A pass over R rows costs T(R) (engine/cost.py). A node that survives with probability a adds a tokens to what the pass
yields. Nodes of all sequences are taken by falling survival while

    tokens per second = (sequences + sum of survivals) / (T(rows) + T_draft)

grows. Survivals are the drafter's own, corrected by how often nodes of that survival were accepted so far. Where the
best of it does not beat a plain pass, nothing is drafted for a while, and each time for longer. Only what is known
before the pass goes in, and answers do not depend on the choice at all.

Source: DSpark's prefix scheduler, arXiv:2607.05147, Algorithm 1.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cost import CostModel
from engine.draft import Draft

_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_PRIOR_NODES = 20.0  # a bucket's own survivals count this much before anything was seen
_RATE = 0.2  # weight of a step in an average
_SHORTEST_REST, _LONGEST_REST = 4, 256  # steps
_FIRST_STEPS = 3  # in which a drafter warms up: the best of them counts
_OUTLIER = 1.5  # a draft that took longer than this many times the average counts as that
_PROBING_SHARE = 0.01  # of the time, at most, goes into finding out that drafting still does not pay
_LEAST_GAIN = 0.995  # a draft that costs less than this may go on looking for its chance
_MEMORY = 1000.0  # nodes of a bucket after which old ones fade
_SPARE_NODES = 4  # asked for beyond what was worth verifying lately


class Calibration:
    """Accepted share of the nodes verified so far, by the survival the drafter gave them."""

    def __init__(self) -> None:
        edges = (0.0, *_BUCKETS, 1.0)
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        self._nodes = [_PRIOR_NODES] * len(middles)
        self._accepted = [_PRIOR_NODES * middle for middle in middles]
        self._middles = middles

    def corrected(self, survival: float) -> float:
        bucket = bisect.bisect_right(_BUCKETS, survival)
        return min(1.0, survival * self._accepted[bucket] / self._nodes[bucket] / self._middles[bucket])

    def record(self, draft: Draft, accepted: Sequence[int]) -> None:
        kept = set(accepted)
        for node, survival in enumerate(draft.survival):
            bucket = bisect.bisect_right(_BUCKETS, survival)
            if self._nodes[bucket] > _MEMORY:
                self._nodes[bucket] /= 2
                self._accepted[bucket] /= 2
            self._nodes[bucket] += 1
            self._accepted[bucket] += node in kept


@dataclass(slots=True)
class _Habit:
    """What drafting brought with about so many sequences. gain: tokens per second over those of a plain pass."""

    gain: float = 1.0
    nodes: float = 0.0  # taken per sequence
    draft_seconds: float = 0.0
    num_steps: int = 0
    rest: int = 0  # steps without a draft still to go
    next_rest: int = _SHORTEST_REST

    def observe_draft(self, seconds: float) -> None:
        if self.num_steps == 0:
            self.draft_seconds = seconds
        elif self.num_steps < _FIRST_STEPS:
            self.draft_seconds = min(self.draft_seconds, seconds)
        else:
            self.draft_seconds = _average(self.draft_seconds, min(seconds, _OUTLIER * self.draft_seconds))

    def learn(self, gain: float, nodes: float, resuming: float) -> None:
        """Of one step: tokens per second over a plain pass's, nodes taken per sequence, plain passes lost before it."""
        self.num_steps += 1
        if self.num_steps <= _FIRST_STEPS:
            self.gain, self.nodes = gain, max(self.nodes, nodes)
        else:
            self.gain, self.nodes = _average(self.gain, gain), _average(self.nodes, nodes)
        if self.num_steps < _FIRST_STEPS:
            return
        if self.gain < _LEAST_GAIN:
            lost = 1.0 / gain - 1.0 + resuming  # by this step, in plain ones
            self.rest = min(max(self.next_rest, int(lost / _PROBING_SHARE)), _LONGEST_REST)
            self.next_rest = min(2 * self.next_rest, _LONGEST_REST)
        else:
            self.next_rest = _SHORTEST_REST


class DraftBudget:
    """Cuts drafts down to what pays; without a cost model it leaves them as they are."""

    def __init__(self, cost: CostModel | None, largest: int) -> None:
        """`largest`: nodes a sequence may ever have."""
        self._cost = cost
        self._calibration = Calibration()
        self._largest = largest
        self._habits: dict[int, _Habit] = {}

    def nodes_to_ask(self, num_sequences: int) -> int:
        """Nodes per sequence that a drafter should propose for this step; 0: it rests."""
        if self._cost is None or self._largest == 0:
            return self._largest
        habit = self._habit(num_sequences)
        if habit.rest > 0:
            habit.rest -= 1
            habit.gain = 1.0  # the first step after a rest decides
            return 0
        if habit.num_steps == 0:  # the more sequences, the fewer nodes of each can pay
            return min(self._largest, max(_SPARE_NODES, 2 * self._largest // num_sequences))
        return min(self._largest, int(1.5 * habit.nodes) + _SPARE_NODES)

    def admit(
        self, drafts: Sequence[Draft], other_rows: int, draft_seconds: float, *, resume_seconds: float = 0.0
    ) -> list[Draft]:
        """The nodes worth verifying.

        Args:
            other_rows: rows of this pass that are there anyway beside one per draft (prefill).
            draft_seconds: what the drafter took, to observe the last pass and to propose.
            resume_seconds: what it took to observe all that was put by while it rested.
        """
        if self._cost is None:
            return list(drafts)
        habit = self._habit(len(drafts))
        habit.observe_draft(draft_seconds)
        offers = sorted(
            (-self._calibration.corrected(survival), index, node)
            for index, draft in enumerate(drafts)
            for node, survival in enumerate(draft.survival)
        )
        rows, expected = other_rows + len(drafts), float(len(drafts))
        best_rate, best_taken, best_expected = expected / self._pass_seconds(rows, habit), 0, expected
        for taken, (negative, _, _) in enumerate(offers, start=1):
            expected -= negative
            rate = expected / self._pass_seconds(rows + taken, habit)
            if rate > best_rate:
                best_rate, best_taken, best_expected = rate, taken, expected
        # What it brings is judged as if nothing else were in the pass: beside a long prompt no draft would show.
        drafted_rate = best_expected / self._pass_seconds(len(drafts) + best_taken, habit)
        plain_seconds = self._cost.seconds(len(drafts))
        gain = drafted_rate * plain_seconds / len(drafts)
        habit.learn(gain, best_taken / len(drafts), resume_seconds / plain_seconds)
        chosen: list[set[int]] = [set() for _ in drafts]
        for _, index, node in offers[:best_taken]:
            chosen[index].add(node)
        return [_closed(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]

    def record(self, draft: Draft, accepted: Sequence[int]) -> None:
        self._calibration.record(draft, accepted)

    def record_pass(self, rows: int, seconds: float) -> None:
        """A pass of decoding rows alone took that long, drafting not counted."""
        if self._cost is not None:
            self._cost.observe(rows, seconds)

    def _pass_seconds(self, rows: int, habit: _Habit) -> float:
        assert self._cost is not None
        return self._cost.seconds(rows) + habit.draft_seconds

    def _habit(self, num_sequences: int) -> _Habit:
        """Shared by 1, 2, 3-4, 5-8, 9-16, ... sequences."""
        return self._habits.setdefault((num_sequences - 1).bit_length(), _Habit())


def _average(old: float, new: float) -> float:
    return old + _RATE * (new - old)


def _closed(draft: Draft, nodes: set[int]) -> Draft:
    """The draft cut to those of `nodes` whose ancestors are among them too: correction can turn an order around."""
    kept: list[int] = []
    for node in sorted(nodes):
        if draft.parents[node] < 0 or draft.parents[node] in kept:
            kept.append(node)
    return draft.only(kept)
