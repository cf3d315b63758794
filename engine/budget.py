"""How many nodes to verify: as many as pay for themselves.

A pass over R rows costs T(R), measured once at start-up. A node that survives with probability a adds a tokens to what
the pass yields. Nodes of all sequences are taken by falling survival while

    tokens per second = (sequences + sum of survivals) / (T(rows) + T_draft)

grows. Survivals are the drafter's own, corrected by how often nodes of that survival were accepted so far. Only what
is known before the pass goes in, and answers do not depend on the choice at all.

Source: DSpark's prefix scheduler, arXiv:2607.05147, Algorithm 1.
"""

import bisect
import itertools
from collections.abc import Callable, Sequence

from engine.draft import Draft

ROW_COUNTS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48)
_MEASURE_SECONDS = 2.0  # at most, beside two rounds that are always made
_MAX_ROUNDS = 20
_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_PRIOR_NODES = 20.0  # a bucket's own survivals count this much before anything was seen


class CostModel:
    """Seconds of a pass by its number of rows: measured points, straight lines between and after them."""

    def __init__(self, row_counts: Sequence[int], seconds: Sequence[float]) -> None:
        if len(row_counts) < 2 or len(row_counts) != len(seconds):
            raise ValueError(f"needs two or more points, got {len(row_counts)} counts and {len(seconds)} times")
        self._rows = list(row_counts)
        self._seconds = [max(seconds[: i + 1]) for i in range(len(seconds))]  # more rows never cost less: noise does

    @classmethod
    def measure(cls, run: Callable[[int], float]) -> "CostModel":
        """`run(rows)` makes one pass and returns its seconds.

        All counts are taken in rounds, so that a spell of noise meets them alike, and the best of each counts.
        """
        run(ROW_COUNTS[-1])  # pages in
        rounds = [[run(rows) for rows in ROW_COUNTS] for _ in range(2)]
        while sum(map(sum, rounds)) + sum(rounds[-1]) < _MEASURE_SECONDS and len(rounds) < _MAX_ROUNDS:
            rounds.append([run(rows) for rows in ROW_COUNTS])
        return cls(ROW_COUNTS, [min(times) for times in zip(*rounds, strict=True)])

    def seconds(self, rows: int) -> float:
        right = min(max(bisect.bisect_left(self._rows, rows), 1), len(self._rows) - 1)
        x0, x1, y0, y1 = self._rows[right - 1], self._rows[right], self._seconds[right - 1], self._seconds[right]
        return max(y0 + (y1 - y0) * (rows - x0) / (x1 - x0), self._seconds[0])


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
            self._nodes[bucket] += 1
            self._accepted[bucket] += node in kept


class DraftBudget:
    """Cuts drafts down to what pays; without a cost model it leaves them as they are."""

    def __init__(self, cost: CostModel | None, largest: int) -> None:
        self._cost = cost
        self._calibration = Calibration()
        self.largest = largest  # nodes a drafter is asked for

    def admit(self, drafts: Sequence[Draft], other_rows: int) -> list[Draft]:
        """`other_rows`: rows of this pass that are there anyway beside one per draft (prefill)."""
        if self._cost is None:
            return list(drafts)
        offers = sorted(
            (-self._calibration.corrected(survival), index, node)
            for index, draft in enumerate(drafts)
            for node, survival in enumerate(draft.survival)
        )
        rows, expected = other_rows + len(drafts), float(len(drafts))
        best_rate, best_taken = expected / self._cost.seconds(rows), 0
        for taken, (negative, _, _) in enumerate(offers, start=1):
            expected -= negative
            rate = expected / self._cost.seconds(rows + taken)
            if rate > best_rate:
                best_rate, best_taken = rate, taken
        chosen: list[set[int]] = [set() for _ in drafts]
        for _, index, node in offers[:best_taken]:
            chosen[index].add(node)
        return [_closed(draft, nodes) for draft, nodes in zip(drafts, chosen, strict=True)]

    def record(self, draft: Draft, accepted: Sequence[int]) -> None:
        self._calibration.record(draft, accepted)


def _closed(draft: Draft, nodes: set[int]) -> Draft:
    """The draft cut to those of `nodes` whose ancestors are among them too: correction can turn an order around."""
    kept: list[int] = []
    for node in sorted(nodes):
        if draft.parents[node] < 0 or draft.parents[node] in kept:
            kept.append(node)
    return draft.only(kept)
