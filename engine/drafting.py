"""Runs a drafter within its budget, checks its drafts, and isolates its failures.

An exception in a drafter only makes decoding slower. While drafting is paused because it does not pay, the passes that
the drafter would observe are stored, up to a number of rows. The drafter observes them together when drafting resumes,
so a paused drafter costs no time.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence as Many

import torch

from engine.adjust import without_excluded
from engine.budget import DraftBudget
from engine.cost import NO_ROWS, PassSize
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Kept, Pass
from engine.sequence import Sequence

logger = logging.getLogger(__name__)

_MAX_DEFERRED_ROWS = 1024


class Drafting:
    def __init__(self, drafter: Drafter, budget: DraftBudget, *, max_nodes: int, vocab_size: int) -> None:
        self.drafter = drafter
        self.budget = budget
        self._max_nodes = max_nodes if drafter.max_depth > 0 else 0
        self._vocab_size = vocab_size
        self._paused = False
        self._deferred: deque[Pass] = deque()
        self._num_deferred_rows = 0
        self._observe_seconds = 0.0  # time to observe the last pass, which is part of the cost of a draft

    def propose(self, decoding: Many[Sequence], room: int, *, others: PassSize = NO_ROWS) -> list[Draft]:
        """Returns one draft per sequence.

        Args:
            room: number of free cache slots, which is the maximum number of nodes of all drafts.
            others: rows of the same pass that belong to other sequences.
        """
        nothing = [EMPTY_DRAFT] * len(decoding)
        if self._max_nodes == 0 or not decoding:
            return nothing
        nodes = min(self.budget.nodes_to_request(len(decoding)), room // len(decoding))
        self._paused = nodes == 0
        if self._paused:
            return nothing
        started = proposing = time.perf_counter()
        try:
            self._observe_deferred()
            proposing = time.perf_counter()
            drafts = self.drafter.propose(decoding, nodes)
            limited = [self._limited(s, d, nodes) for s, d in zip(decoding, drafts, strict=True)]
        except Exception:
            logger.exception("drafter %s failed; decoding without drafts", self.drafter.name)
            limited = nothing
        draft_seconds = time.perf_counter() - proposing + self._observe_seconds
        contexts = [sequence.num_computed for sequence in decoding]
        resume_seconds = proposing - started
        return self.budget.admit(limited, contexts, draft_seconds, others=others, resume_seconds=resume_seconds)

    def observe(self, done: Pass) -> None:
        if self._max_nodes == 0 or not done.kept:
            return
        self._deferred.append(done)
        self._num_deferred_rows += done.hidden.shape[0]
        if self._paused:
            while self._num_deferred_rows > _MAX_DEFERRED_ROWS:
                self._num_deferred_rows -= self._deferred.popleft().hidden.shape[0]
            return
        started = time.perf_counter()
        try:
            self._observe_deferred()
        except Exception:
            logger.exception("drafter %s failed to observe a pass", self.drafter.name)
        self._observe_seconds = time.perf_counter() - started

    def forget(self, request_id: str) -> None:
        try:
            self.drafter.forget(request_id)
        except Exception:
            logger.exception("drafter %s failed to forget a request", self.drafter.name)

    def _observe_deferred(self) -> None:
        passes = list(self._deferred)
        self._deferred.clear()
        self._num_deferred_rows = 0
        if merged := _merged(passes):
            self.drafter.observe(merged)

    def _limited(self, sequence: Sequence, draft: Draft, max_nodes: int) -> Draft:
        """Removes nodes with unknown tokens and nodes beyond the request's token limit. Keeps at most `max_nodes`."""
        max_depth = sequence.num_remaining - 1
        kept: list[int] = []
        for node, depth in enumerate(draft.depths()):
            parent_kept = draft.parents[node] < 0 or draft.parents[node] in kept
            possible = depth <= max_depth and 0 <= draft.tokens[node] < self._vocab_size
            if possible and parent_kept and len(kept) < max_nodes:
                kept.append(node)
        return without_excluded(draft if len(kept) == len(draft) else draft.only(kept), sequence)


def _merged(passes: Many[Pass]) -> Pass | None:
    """Merges passes into one and joins rows of consecutive positions; leaves out sequences that have ended."""
    if not passes:
        return None
    kept: dict[Sequence, list[Kept]] = {}
    first_row = 0
    for done in passes:
        for part in done.kept:
            if part.sequence.table_row < 0:  # the sequence ended or was preempted after the pass
                continue
            rows = tuple(first_row + row for row in part.rows)
            pieces = kept.setdefault(part.sequence, [])
            if pieces and pieces[-1].position + len(pieces[-1].rows) == part.position:
                before = pieces.pop()
                pieces.append(Kept(part.sequence, before.position, before.rows + rows))
            else:
                pieces.append(Kept(part.sequence, part.position, rows))
        first_row += done.hidden.shape[0]
    if len(passes) == 1:
        hidden, taps = passes[0].hidden, passes[0].taps
    else:
        hidden = torch.cat([done.hidden for done in passes])
        taps = None if passes[0].taps is None else torch.cat([done.taps for done in passes if done.taps is not None])
    return Pass(hidden, taps, tuple(piece for pieces in kept.values() for piece in pieces))
