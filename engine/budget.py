"""Decides how many draft nodes to propose and verify, so that the expected throughput is highest.

A forward pass takes T(size) seconds, where the size consists of the number of rows (one per token) and the number of
keys to which these rows attend (engine/cost.py). The survival of a draft node is the probability that the node is
accepted. It equals the number of tokens that the node is expected to add to the output of the pass. The value of a node
is its survival, less the number of tokens that could be generated in the time that the node's attention takes. The
nodes of all sequences are sorted by decreasing value. The pass verifies the first k nodes, with the k that maximizes

    tokens per second = (sequences + sum of survivals) / (T(size) + T_draft)

where T_draft is the time to propose the drafts. The drafter estimates the survivals, and this module corrects them by
the observed acceptance of nodes with similar survival. If the maximum is below the rate of a pass without drafts,
drafting pauses for some steps. Each pause is longer than the previous one until drafting pays again. The decision uses
only what is known before the pass, and never changes an answer.

Source: DSpark's prefix scheduler, arXiv:2607.05147, Algorithm 1.
"""

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cost import NO_ROWS, CostModel, PassSize
from engine.draft import Draft

_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_PRIOR_NODES = 20.0  # weight of the drafter's own estimate in each bucket, as a number of observed nodes
_RATE = 0.2  # weight of the latest step in a moving average
_SHORTEST_PAUSE, _LONGEST_PAUSE = 4, 256  # length of a pause, in steps
_FIRST_STEPS = 3  # number of warm-up steps of the drafter; the shortest of their draft times is used
_OUTLIER = 1.5  # longer draft times are clipped to this multiple of the average
_PROBING_SHARE = 0.01  # share of the time that may be spent on testing, after pauses, whether drafting pays again
_LEAST_GAIN = 0.995  # drafting pauses below this gain; between this gain and 1, the loss is too small for a pause
_MAX_BUCKET_NODES = 1000.0  # when a bucket has this many nodes, its counts are halved
_SPARE_NODES = 4  # nodes requested in addition to the number that was recently worth verifying


class Calibration:
    """Corrects survivals by the observed acceptance rate of verified nodes with similar survival."""

    def __init__(self) -> None:
        edges = (0.0, *_BUCKETS, 1.0)
        middles = [(low + high) / 2 for low, high in itertools.pairwise(edges)]
        self._nodes = [_PRIOR_NODES] * len(middles)
        self._accepted = [_PRIOR_NODES * middle for middle in middles]
        self._middles = middles

    def corrected(self, survival: float) -> float:
        """Scales `survival` by the bucket's observed acceptance rate relative to the bucket's middle."""
        bucket = bisect.bisect_right(_BUCKETS, survival)
        return min(1.0, survival * self._accepted[bucket] / self._nodes[bucket] / self._middles[bucket])

    def record(self, draft: Draft, accepted: Sequence[int]) -> None:
        kept = set(accepted)
        for node, survival in enumerate(draft.survival):
            bucket = bisect.bisect_right(_BUCKETS, survival)
            if self._nodes[bucket] > _MAX_BUCKET_NODES:
                self._nodes[bucket] /= 2
                self._accepted[bucket] /= 2
            self._nodes[bucket] += 1
            self._accepted[bucket] += node in kept


@dataclass(slots=True)
class _GainEstimate:
    """Gain of drafting in one range of batch sizes: tokens per second relative to passes without drafts."""

    gain: float = 1.0
    nodes: float = 0.0  # nodes verified per sequence
    draft_seconds: float = 0.0
    num_steps: int = 0
    pause: int = 0  # remaining steps of the current pause
    next_pause: int = _SHORTEST_PAUSE

    def observe_draft(self, seconds: float) -> None:
        if self.num_steps == 0:
            self.draft_seconds = seconds
        elif self.num_steps < _FIRST_STEPS:
            self.draft_seconds = min(self.draft_seconds, seconds)
        else:
            self.draft_seconds = _average(self.draft_seconds, min(seconds, _OUTLIER * self.draft_seconds))

    def learn(self, gain: float, nodes: float, resuming: float) -> None:
        """Records the gain of one step and the number of nodes per sequence that it verified.

        `resuming`: time that the drafter took to observe the passes deferred during a pause, in units of a pass without
        drafts.
        """
        self.num_steps += 1
        if self.num_steps <= _FIRST_STEPS:
            self.gain, self.nodes = gain, max(self.nodes, nodes)
        else:
            self.gain, self.nodes = _average(self.gain, gain), _average(self.nodes, nodes)
        if self.num_steps < _FIRST_STEPS:
            return
        if self.gain < _LEAST_GAIN:
            lost = 1.0 / gain - 1.0 + resuming  # time lost by this step, in units of a pass without drafts
            self.pause = min(max(self.next_pause, int(lost / _PROBING_SHARE)), _LONGEST_PAUSE)
            self.next_pause = min(2 * self.next_pause, _LONGEST_PAUSE)
        else:
            self.next_pause = _SHORTEST_PAUSE


class DraftBudget:
    """Cuts drafts to the nodes worth verifying; without a cost model it keeps all nodes."""

    def __init__(self, cost: CostModel | None, largest: int) -> None:
        """`largest`: maximum number of draft nodes per sequence."""
        self._cost = cost
        self._calibration = Calibration()
        self._largest = largest
        self._estimates: dict[int, _GainEstimate] = {}

    def nodes_to_request(self, num_sequences: int) -> int:
        """Nodes per sequence that the drafter should propose in this step; 0 while drafting is paused."""
        if self._cost is None or self._largest == 0:
            return self._largest
        estimate = self._estimate(num_sequences)
        if estimate.pause > 0:
            estimate.pause -= 1
            estimate.gain = 1.0  # reset, so that the first step after the pause decides whether drafting pauses again
            return 0
        if estimate.num_steps == 0:  # with many sequences, few nodes per sequence are worth verifying
            return min(self._largest, max(_SPARE_NODES, 2 * self._largest // num_sequences))
        return min(self._largest, int(1.5 * estimate.nodes) + _SPARE_NODES)

    def admit(
        self,
        drafts: Sequence[Draft],
        contexts: Sequence[int],
        draft_seconds: float,
        *,
        others: PassSize = NO_ROWS,
        resume_seconds: float = 0.0,
    ) -> list[Draft]:
        """Returns the drafts cut to the nodes worth verifying.

        Args:
            contexts: the position of each sequence's last token.
            others: rows of this pass that belong to other sequences.
            draft_seconds: time the drafter took to observe the previous pass and to propose.
            resume_seconds: time the drafter took to observe the passes deferred during a pause.
        """
        if self._cost is None:
            return list(drafts)
        estimate = self._estimate(len(drafts))
        estimate.observe_draft(draft_seconds)
        size = sum((PassSize.of_rows(1, context) for context in contexts), NO_ROWS)
        plain_seconds, expected = self._cost.seconds(size), float(len(drafts))
        offers = self._offers(drafts, contexts, tokens_per_second=len(drafts) / plain_seconds)
        whole = size + others
        rows, keys, row_keys = whole.rows, whole.keys, whole.row_keys
        best_rate = expected / self._pass_seconds(whole, estimate)
        best_taken, best_expected = 0, expected
        for taken, (_, index, _, survival) in enumerate(offers, start=1):
            expected += survival
            row_keys += contexts[index] + 1
            rate = expected / (self._cost.seconds_of(rows + taken, keys + taken, row_keys) + estimate.draft_seconds)
            if rate > best_rate:
                best_rate, best_taken, best_expected = rate, taken, expected
        # The gain is computed without the rows of other sequences, because drafts hardly change the rate of a pass with
        # a long prompt.
        best_row_keys = sum(contexts[index] + 1 for _, index, _, _ in offers[:best_taken])
        best_size = size + PassSize(best_taken, best_taken, best_row_keys)
        drafted_rate = best_expected / self._pass_seconds(best_size, estimate)
        gain = drafted_rate * plain_seconds / len(drafts)
        estimate.learn(gain, best_taken / len(drafts), resume_seconds / plain_seconds)
        admitted: list[set[int]] = [set() for _ in drafts]
        for _, index, node, _ in offers[:best_taken]:
            admitted[index].add(node)
        return [_closed(draft, nodes) for draft, nodes in zip(drafts, admitted, strict=True)]

    def record(self, draft: Draft, accepted: Sequence[int]) -> None:
        self._calibration.record(draft, accepted)

    def record_pass(self, size: PassSize, seconds: float) -> None:
        """Records the time of a pass without prefill rows; drafting is not included."""
        if self._cost is not None:
            self._cost.observe(size, seconds)

    def _offers(
        self, drafts: Sequence[Draft], contexts: Sequence[int], *, tokens_per_second: float
    ) -> list[tuple[float, int, int, float]]:
        """Returns (-value, index of the draft, node, survival) of all nodes, the most valuable node first."""
        assert self._cost is not None
        tokens_per_key = tokens_per_second * self._cost.key_seconds()
        offers: list[tuple[float, int, int, float]] = []
        for index, (draft, context) in enumerate(zip(drafts, contexts, strict=True)):
            corrected = map(self._calibration.corrected, draft.survival)
            offers += ((tokens_per_key * context - value, index, node, value) for node, value in enumerate(corrected))
        return sorted(offers)

    def _pass_seconds(self, size: PassSize, estimate: _GainEstimate) -> float:
        assert self._cost is not None
        return self._cost.seconds(size) + estimate.draft_seconds

    def _estimate(self, num_sequences: int) -> _GainEstimate:
        """Returns the estimate for the range of batch sizes of `num_sequences`: 1, 2, 3-4, 5-8, 9-16, ..."""
        return self._estimates.setdefault((num_sequences - 1).bit_length(), _GainEstimate())


def _average(old: float, new: float) -> float:
    return old + _RATE * (new - old)


def _closed(draft: Draft, nodes: set[int]) -> Draft:
    """Returns the draft cut to the `nodes` whose ancestors are all in `nodes`.

    `nodes` may lack the parent of a node, because calibration can rank a child above its parent.
    """
    kept: list[int] = []
    for node in sorted(nodes):
        if draft.parents[node] < 0 or draft.parents[node] in kept:
            kept.append(node)
    return draft.only(kept)
