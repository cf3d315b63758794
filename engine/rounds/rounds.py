"""The host's side of rounds: it schedules the next one while the last one's tokens are still on their way.

    launch n+1 ─▶ read n ─▶ commit n ─▶ launch n+2 ─▶ read n+1 ...

The device knows where each sequence stands (engine/rounds/lanes.py), so a round needs of the host only who takes part,
and slots: one for the last token and one for each node, since nobody knows yet which will be kept. What the device kept
is read a round late: then tokens are committed, the slots of the other nodes are freed, and ends and limits are known.
What the rounds launched meanwhile did for an answer that had ended is surplus: it is dropped, and its slots are freed.
That is safe because the device does one thing after the other: whoever gets a slot or a lane next uses it later.

Answers are those of the synchronous step: which tokens come out depends on neither what was drafted nor who took part.
"""

import time
from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from engine.adjust import needs_adjusting
from engine.draft import Draft
from engine.drafters.base import Kept, Pass
from engine.drafting import Drafting
from engine.kv_cache import KVCache
from engine.lora_stacks import LoraStacks
from engine.request import StepOutput
from engine.rounds.drafters.base import RoundDrafter
from engine.rounds.lanes import Lanes, is_filtered
from engine.rounds.runner import Launched, Outcome, Runner
from engine.scheduler import Scheduler
from engine.sequence import Sequence

_NODE_COUNTS = (0, 3, 7, 15, 31)  # with the last token's row they make or fill tiles of 16 rows


def node_counts(draft_budget: int | None) -> tuple[int, ...]:
    """Nodes a sequence may have in a round, ascending; draft_budget: as in EngineConfig."""
    return _NODE_COUNTS if draft_budget is None else tuple(sorted({0, draft_budget}))


class Finish(Protocol):
    def __call__(
        self, sequence: Sequence, draft: Draft, tokens: tuple[int, ...], path: tuple[int, ...]
    ) -> tuple[StepOutput, tuple[int, ...]]: ...


def fits_rounds(sequence: Sequence, *, adapters: bool) -> bool:
    """Whether its tokens can be chosen without the host; `adapters`: its rows may need low-rank updates."""
    sampling = sequence.request.sampling
    return (sequence.root is None or adapters) and sampling.num_logprobs is None and not needs_adjusting(sampling)


@dataclass(frozen=True, slots=True)
class _Part:
    """A sequence's part of a round; slots: of its last token, then of each node."""

    sequence: Sequence
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _InFlight:
    launched: Launched
    parts: tuple[_Part, ...]
    num_nodes: int
    drafts: tuple[Draft, ...] | None  # of the host


class Rounds:
    """The sequences that decode in rounds, and the rounds in flight."""

    def __init__(
        self,
        runner: Runner,
        lanes: Lanes,
        cache: KVCache,
        scheduler: Scheduler,
        drafting: Drafting,
        drafter: RoundDrafter | None,
        *,
        stacks: LoraStacks | None,
        finish: Finish,
        node_counts: tuple[int, ...],
        phase_seconds: dict[str, float],
    ) -> None:
        """
        Args:
            drafter: that drafts on the device; None: `drafting` does on the host, if anybody does.
            stacks: of the adapters that sequences may have; None: nobody has one.
            finish: commits what came of a draft, up to the answer's end; returns what was added and the nodes kept.
            phase_seconds: added to.
        """
        self.runner = runner
        self.lanes = lanes
        self._cache = cache
        self._scheduler = scheduler
        self._drafting = drafting
        self.drafter = drafter
        self._stacks = stacks
        self._stacks_version = 0
        self._finish = finish
        self._in_flight: deque[_InFlight] = deque()
        self._entered: set[Sequence] = set()
        self._node_counts = node_counts
        self._phase_seconds = phase_seconds
        self._drafts_on_host = drafter is None and drafting.drafter.max_depth > 0

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight)

    def step(self) -> list[StepOutput]:
        """Launches a round, if anybody can go on, and reads the one before."""
        ahead = 1 if self._launch() and not self._drafts_on_host else 0
        outputs: list[StepOutput] = []
        while len(self._in_flight) > ahead:
            outputs += self._read()
        if not self._scheduler.running:  # what is in flight is surplus
            outputs += self.read_all()
        return outputs

    def read_all(self) -> list[StepOutput]:
        return [output for _ in range(len(self._in_flight)) for output in self._read()]

    def leave(self) -> list[StepOutput]:
        """From now on the host decides; what the device knows of the sequences is worth nothing any more."""
        outputs = self.read_all()
        self._entered.clear()
        return outputs

    def _launch(self) -> bool:
        """Returns whether there was anybody to launch a round for."""
        started = time.perf_counter()
        sequences, num_nodes = self._who_has_room()
        if not sequences or not self._stacks_are_ready(sequences):
            return False
        drafts: list[Draft] | None = None
        if self._drafts_on_host:
            room = self._scheduler.pool.num_available - len(sequences)
            drafts = self._drafting.propose(sequences, 0, room)
            num_nodes = self._node_count(max(map(len, drafts)))
            if not self._has_room(sequences, num_nodes):
                drafts, num_nodes = [draft.only(()) for draft in drafts], 0
        self._enter(sequences)
        parts = tuple(_Part(s, tuple(self._scheduler.take(1 + num_nodes))) for s in sequences)
        try:
            launched = self.runner.launch(
                [sequence.table_row for sequence in sequences],
                [part.slots for part in parts],
                num_nodes,
                drafts=drafts,
                filtered=any(is_filtered(sequence.request.sampling) for sequence in sequences),
                adapted=any(sequence.root is not None for sequence in sequences),
            )
        except BaseException:
            for part in parts:
                self._scheduler.give_back(part.slots)
            raise
        self._in_flight.append(_InFlight(launched, parts, num_nodes, None if drafts is None else tuple(drafts)))
        self._phase_seconds["host"] += time.perf_counter() - started
        return True

    def _who_has_room(self) -> tuple[list[Sequence], int]:
        """Who takes part, and with how many nodes each; nobody where rounds in flight hold what they need."""
        sequences = self._who_goes_on()
        num_nodes = self._nodes(sequences) if sequences else 0
        while sequences and not self._has_room(sequences, num_nodes):
            if num_nodes:
                num_nodes = max(count for count in self._node_counts if count < num_nodes)
            elif self._in_flight:
                return [], 0
            else:
                victim = self._scheduler.preempt_latest()
                self._entered.discard(victim)
                self._drafting.forget(victim.request.request_id)
                sequences = [sequence for sequence in sequences if sequence is not victim]
        return sequences, num_nodes

    def _who_goes_on(self) -> list[Sequence]:
        """Those that decode and will not have reached their limit by the rounds in flight, which bring a token each."""
        under_way: dict[Sequence, int] = {}
        for flight in self._in_flight:
            for part in flight.parts:
                under_way[part.sequence] = under_way.get(part.sequence, 0) + 1
        running = self._scheduler.running.values()
        return [s for s in running if s.is_decoding and s.num_remaining > under_way.get(s, 0)]

    def _nodes(self, sequences: Many[Sequence]) -> int:
        """Nodes of each: as many as paid lately. What is known a round late is known before this round's tokens."""
        if self._drafts_on_host or self.drafter is None:
            return 0
        if all(sequence.num_remaining - len(self._in_flight) <= 1 for sequence in sequences):
            return 0
        return self._node_count(self._drafting.budget.nodes_to_ask(len(sequences)))

    def _stacks_are_ready(self, sequences: Many[Sequence]) -> bool:
        """False while rounds are in flight and adapters have, or are to get, other places than their lanes know."""
        roots = [sequence.root for sequence in sequences]
        if self._stacks is None or (self._stacks.has(roots) and self._stacks.version == self._stacks_version):
            return True
        if self._in_flight:
            return False
        if not self._stacks.has(roots):
            self._stacks.join(roots)
        self._stacks_version = self._stacks.version
        self._entered.clear()
        return True

    def _has_room(self, sequences: Many[Sequence], num_nodes: int) -> bool:
        return len(sequences) * (1 + num_nodes) <= self._scheduler.pool.num_available

    def _enter(self, sequences: Many[Sequence]) -> None:
        places: tuple[list[int], list[int], list[int]] = ([], [], [])
        for sequence in sequences:
            new = range(sequence.num_tabled, len(sequence.slots))
            places[0].extend([sequence.table_row] * len(new))
            places[1].extend(new)
            places[2].extend(sequence.slots[sequence.num_tabled :])
            sequence.num_tabled = len(sequence.slots)
            if sequence not in self._entered:
                self.lanes.enter(sequence, -1 if self._stacks is None else self._stacks.place(sequence.root))
                if self.drafter is not None:
                    self.drafter.enter(sequence)
                self._entered.add(sequence)
        self._cache.write_tables(*places)

    def _read(self) -> list[StepOutput]:
        """Waits for the oldest round and commits what came of it."""
        flight = self._in_flight.popleft()
        launched = flight.launched
        outcomes = Outcome.of(launched.result.wait(), flight.num_nodes)
        started = time.perf_counter()
        draft_seconds = launched.drafted.seconds_since(launched.began)
        verify_seconds = launched.ended.seconds_since(launched.drafted)
        outputs: list[StepOutput] = []
        kept: list[Kept] = []
        drafts: list[Draft] = []
        for index, (part, outcome) in enumerate(zip(flight.parts, outcomes, strict=False)):
            sequence = part.sequence
            if self._scheduler.running.get(sequence.request.request_id) is not sequence:
                self._entered.discard(sequence)
                self._scheduler.give_back(part.slots)  # it had ended: surplus
                continue
            drafts.append(outcome.draft if flight.drafts is None else flight.drafts[index])
            position, first = sequence.num_computed, index * (1 + flight.num_nodes)
            self._take_over(part, outcome)
            output, path = self._finish(sequence, drafts[-1], outcome.tokens, outcome.path)
            outputs.append(output)
            if output.finish_reason:
                self._entered.discard(sequence)
            else:
                kept.append(Kept(sequence, position, (first, *(first + 1 + node for node in path))))
        self._learn(flight, drafts, draft_seconds, verify_seconds)
        if launched.hidden is not None:
            hidden = launched.hidden
            taps = None if hidden.taps is None else hidden.taps.clone()
            self._drafting.observe(Pass(hidden.final.clone(), taps, tuple(kept)))
        self._phase_seconds["draft"] += draft_seconds
        self._phase_seconds["verify"] += verify_seconds
        self._phase_seconds["host"] += time.perf_counter() - started
        return outputs

    @staticmethod
    def _take_over(part: _Part, outcome: Outcome) -> None:
        """The round's slots become the sequence's. The device has named those it kept in the table by itself."""
        sequence = part.sequence
        if sequence.num_tabled == len(sequence.slots):
            sequence.num_tabled += 1 + len(outcome.path)
        sequence.slots.append(part.slots[0])
        sequence.draft_slots = list(part.slots[1:])

    def _learn(self, flight: _InFlight, drafts: list[Draft], draft_seconds: float, verify_seconds: float) -> None:
        """What drafting cost and brought, for the budget."""
        budget = self._drafting.budget
        if flight.num_nodes and flight.drafts is None and drafts:
            budget.admit(drafts, 0, draft_seconds)
        budget.record_pass(len(flight.parts) * (1 + flight.num_nodes), verify_seconds)

    def _node_count(self, wanted: int) -> int:
        """Nodes of the smallest round that has so many."""
        return next(count for count in self._node_counts if count >= wanted)
