"""Decides how many draft nodes to propose and verify, so that the expected throughput is highest.

A pass over R rows costs T(R) (engine/cost.py). A node with acceptance probability a (its survival) adds a tokens to the
expected output of the pass. Nodes of all sequences are taken in order of decreasing survival while

    tokens per second = (sequences + sum of survivals) / (T(rows) + T_draft)

increases. The drafter estimates survivals; they are corrected by the observed acceptance of nodes with similar
survival. If the best choice is slower than a plain pass, drafting pauses for some steps, and for more steps each time.
The decision uses only what is known before the pass, and never changes an answer.

Source: DSpark's prefix scheduler, arXiv:2607.05147, Algorithm 1.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cost import CostModel
from engine.draft import Draft

_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_PRIOR_NODES = 20.0  # weight of the drafter's own survival in a bucket without observations
_RATE = 0.2  # weight of the latest step in a moving average
_SHORTEST_REST, _LONGEST_REST = 4, 256  # steps without drafts
_FIRST_STEPS = 3  # the drafter warms up in these, so the fastest counts
_OUTLIER = 1.5  # longer draft times are clipped to this multiple of the average
_PROBING_SHARE = 0.01  # maximum share of time lost to testing whether drafting pays again
_LEAST_GAIN = 0.995  # drafting continues above this, since it costs next to nothing
_MEMORY = 1000.0  # when a bucket has this many nodes, its counts are halved
_SPARE_NODES = 4  # requested beyond the number that was worth verifying lately


class Calibration:
    """Observed acceptance rate of verified nodes, by the survival that the drafter estimated."""

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
class _GainEstimate:
    """Gain of drafting at one range of batch sizes: tokens per second relative to a plain pass."""

    gain: float = 1.0
    nodes: float = 0.0  # verified per sequence
    draft_seconds: float = 0.0
    num_steps: int = 0
    rest: int = 0  # remaining steps without drafts
    next_rest: int = _SHORTEST_REST

    def observe_draft(self, seconds: float) -> None:
        if self.num_steps == 0:
            self.draft_seconds = seconds
        elif self.num_steps < _FIRST_STEPS:
            self.draft_seconds = min(self.draft_seconds, seconds)
        else:
            self.draft_seconds = _average(self.draft_seconds, min(seconds, _OUTLIER * self.draft_seconds))

    def learn(self, gain: float, nodes: float, resuming: float) -> None:
        """Records one step: its gain, its nodes per sequence, and the cost of resuming in units of plain passes."""
        self.num_steps += 1
        if self.num_steps <= _FIRST_STEPS:
            self.gain, self.nodes = gain, max(self.nodes, nodes)
        else:
            self.gain, self.nodes = _average(self.gain, gain), _average(self.nodes, nodes)
        if self.num_steps < _FIRST_STEPS:
            return
        if self.gain < _LEAST_GAIN:
            lost = 1.0 / gain - 1.0 + resuming  # time lost by this step, in units of plain passes
            self.rest = min(max(self.next_rest, int(lost / _PROBING_SHARE)), _LONGEST_REST)
            self.next_rest = min(2 * self.next_rest, _LONGEST_REST)
        else:
            self.next_rest = _SHORTEST_REST


class DraftBudget:
    """Cuts drafts to the nodes worth verifying; without a cost model it keeps them all."""

    def __init__(self, cost: CostModel | None, largest: int) -> None:
        """`largest`: maximum nodes of a sequence."""
        self._cost = cost
        self._calibration = Calibration()
        self._largest = largest
        self._estimates: dict[int, _GainEstimate] = {}

    def nodes_to_ask(self, num_sequences: int) -> int:
        """Nodes per sequence that the drafter should propose in this step; 0 while drafting is paused."""
        if self._cost is None or self._largest == 0:
            return self._largest
        estimate = self._estimate(num_sequences)
        if estimate.rest > 0:
            estimate.rest -= 1
            estimate.gain = 1.0  # so that the first step after a pause counts most
            return 0
        if estimate.num_steps == 0:  # with more sequences, fewer nodes of each can pay
            return min(self._largest, max(_SPARE_NODES, 2 * self._largest // num_sequences))
        return min(self._largest, int(1.5 * estimate.nodes) + _SPARE_NODES)

    def admit(
        self, drafts: Sequence[Draft], other_rows: int, draft_seconds: float, *, resume_seconds: float = 0.0
    ) -> list[Draft]:
        """Returns the drafts cut to the nodes worth verifying.

        Args:
            other_rows: prefill rows of this pass.
            draft_seconds: time the drafter took to observe the previous pass and to propose.
            resume_seconds: time the drafter took to observe the passes deferred during a pause.
        """
        if self._cost is None:
            return list(drafts)
        estimate = self._estimate(len(drafts))
        estimate.observe_draft(draft_seconds)
        offers = sorted(
            (-self._calibration.corrected(survival), index, node)
            for index, draft in enumerate(drafts)
            for node, survival in enumerate(draft.survival)
        )
        rows, expected = other_rows + len(drafts), float(len(drafts))
        best_rate, best_taken, best_expected = expected / self._pass_seconds(rows, estimate), 0, expected
        for taken, (negative, _, _) in enumerate(offers, start=1):
            expected -= negative
            rate = expected / self._pass_seconds(rows + taken, estimate)
            if rate > best_rate:
                best_rate, best_taken, best_expected = rate, taken, expected
        # The gain ignores prefill rows: next to a long prompt no draft would make a difference.
        drafted_rate = best_expected / self._pass_seconds(len(drafts) + best_taken, estimate)
        plain_seconds = self._cost.seconds(len(drafts))
        gain = drafted_rate * plain_seconds / len(drafts)
        estimate.learn(gain, best_taken / len(drafts), resume_seconds / plain_seconds)
        chosen: list[set[int]] = [set() for _ in drafts]
        for _, index, node in offers[:best_taken]:
            chosen[index].add(node)
        return [_closed(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]

    def record(self, draft: Draft, accepted: Sequence[int]) -> None:
        self._calibration.record(draft, accepted)

    def record_pass(self, rows: int, seconds: float) -> None:
        """Records the time of a pass without prefill rows; drafting is not included."""
        if self._cost is not None:
            self._cost.observe(rows, seconds)

    def _pass_seconds(self, rows: int, estimate: _GainEstimate) -> float:
        assert self._cost is not None
        return self._cost.seconds(rows) + estimate.draft_seconds

    def _estimate(self, num_sequences: int) -> _GainEstimate:
        """One estimate each for 1, 2, 3-4, 5-8, 9-16, ... sequences."""
        return self._estimates.setdefault((num_sequences - 1).bit_length(), _GainEstimate())


def _average(old: float, new: float) -> float:
    return old + _RATE * (new - old)


def _closed(draft: Draft, nodes: set[int]) -> Draft:
    """Cuts the draft to `nodes` without those whose parent is missing, which the correction can rank below them."""
    kept: list[int] = []
    for node in sorted(nodes):
        if draft.parents[node] < 0 or draft.parents[node] in kept:
            kept.append(node)
    return draft.only(kept)
