"""The host's side of graph decoding: it launches a graph step before it has read the tokens of the previous one.

    launch n+1 ─▶ read n ─▶ commit n ─▶ launch n+2 ─▶ read n+1 ...

The device holds the state of each sequence (engine/graph_decoding/batch_slots.py), so the host passes only the list of
sequences and free cache slots. Each sequence gets one slot for its last token and one for each draft node, because the
host does not know yet which nodes will be accepted. The host reads the accepted nodes one step late. It then commits
the tokens, frees the slots of rejected nodes, and applies stop tokens and limits. If a sequence has ended, steps that
were launched in the meantime still contain it. The host drops their results for this sequence and frees its slots. This
is safe because the device executes in order: a step that reuses a cache slot or batch slot runs after these steps.

If the device cannot sample a sequence's tokens (`GraphDecoder.decodes`), the sequence decodes in synchronous passes of
the engine, between two launches. These passes need cache slots, too. The scheduler may preempt any running sequence,
but only while no graph step is in flight.

The output is the same as without graphs, because tokens depend neither on drafts nor on other sequences in the batch.
"""

import time
from collections import deque
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol

from engine.adjust import needs_adjusting
from engine.cache.kv_cache import KVCache
from engine.cost import NO_ROWS, PassSize
from engine.draft import MAX_DEPTH, Draft
from engine.drafters.base import Kept, Pass
from engine.drafting import Drafting
from engine.given_drafts import given_drafts
from engine.graph_decoding.batch_slots import BatchSlots, is_filtered
from engine.graph_decoding.drafters.base import GraphDrafter
from engine.graph_decoding.runner import LaunchedStep, Outcome, Runner
from engine.lora.stacks import LoraStacks
from engine.request import StepOutput
from engine.scheduler import Scheduler
from engine.sequence import Sequence

# The allowed numbers of draft nodes per sequence. Together with the last token, a sequence then has 1, 4, 8, 16, 32, 64
# or 128 rows, which fill tiles of 16 rows well. Trees of more than 31 nodes are used only in steps of at most 128 rows,
# so only with few sequences.
_NODE_COUNTS = (0, 3, 7, 15, 31, 63, 127)
_MANY_NODES, _MAX_ROWS_OF_MANY_NODES = 31, 128


def node_counts(draft_budget: int | None) -> tuple[int, ...]:
    """Returns the allowed numbers of draft nodes per sequence, ascending. `draft_budget` as in EngineConfig."""
    return _NODE_COUNTS if draft_budget is None else tuple(sorted({0, draft_budget}))


class CommitTokens(Protocol):
    def __call__(
        self, sequence: Sequence, draft: Draft, tokens: tuple[int, ...], path: tuple[int, ...], *, failed: bool
    ) -> tuple[StepOutput, tuple[int, ...]]:
        """Commits verified tokens up to the end of the answer. Returns the output and the kept nodes.

        failed: the logits after `tokens` are not finite.
        """


@dataclass(frozen=True, slots=True)
class _Part:
    """A sequence in a graph step; slots: the cache slots of its last token, then of each draft node."""

    sequence: Sequence
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _InFlight:
    launched: LaunchedStep
    parts: tuple[_Part, ...]
    num_nodes: int
    drafts: tuple[Draft, ...] | None  # drafts made on the host; None: the device drafted


class GraphDecoder:
    """Launches graph steps for the scheduler's decoding sequences and commits their results."""

    def __init__(
        self,
        runner: Runner,
        batch_slots: BatchSlots,
        cache: KVCache,
        scheduler: Scheduler,
        drafting: Drafting,
        drafter: GraphDrafter | None,
        *,
        stacks: LoraStacks | None,
        commit_tokens: CommitTokens,
        node_counts: tuple[int, ...],
        phase_seconds: dict[str, float],
    ) -> None:
        """
        Args:
            drafter: the drafter on the device; None if `drafting` drafts on the host or there is no drafter.
            stacks: LoRA adapters of the sequences; None: no sequence has an adapter.
            commit_tokens: `Engine._commit_graph_tokens`.
            phase_seconds: the time spent in each phase is added here.
        """
        self.runner = runner
        self.batch_slots = batch_slots
        self._cache = cache
        self._scheduler = scheduler
        self._drafting = drafting
        self.drafter = drafter
        self._stacks = stacks
        self._stacks_version = 0
        self._commit_tokens = commit_tokens
        self._in_flight: deque[_InFlight] = deque()
        self._loaded: set[Sequence] = set()
        self._node_counts = node_counts
        self._phase_seconds = phase_seconds
        self._drafts_on_host = drafter is None and drafting.drafter.max_depth > 0

    @property
    def has_work(self) -> bool:
        return bool(self._in_flight)

    def decodes(self, sequence: Sequence) -> bool:
        """Returns whether graph steps decode the sequence.

        This requires that the device can sample the sequence's tokens without the host.
        """
        if sequence.request.sampling.num_logprobs is not None or sequence.request.expected_token_ids:
            return False
        return (sequence.root is None or self._stacks is not None) and not needs_adjusting(sequence)

    def step(self) -> list[StepOutput]:
        """Launches a graph step if any sequence can continue, and reads the previous one."""
        # A drafter on the host needs all tokens, so the new step must be read before the next one is launched.
        ahead = 1 if self._launch() and not self._drafts_on_host else 0
        outputs: list[StepOutput] = []
        while len(self._in_flight) > ahead:
            outputs += self._read()
        if not self._scheduler.running:  # every sequence has ended, so `step` may not be called again
            outputs += self.read_all()
        return outputs

    def read_all(self) -> list[StepOutput]:
        return [output for _ in range(len(self._in_flight)) for output in self._read()]

    def drain(self) -> list[StepOutput]:
        """Reads all graph steps in flight. Sequences are loaded again before the next launch."""
        outputs = self.read_all()
        self._loaded.clear()
        return outputs

    def _launch(self) -> bool:
        """Launches a graph step if any sequence can continue. Returns whether a step was launched."""
        started = time.perf_counter()
        sequences, num_nodes = self._schedule()
        if not sequences or not self._stacks_are_ready(sequences):
            return False
        drafts: list[Draft] | None = None
        if self._drafts_on_host:
            drafts = self._host_drafts(sequences)
            num_nodes = self._node_count(max(map(len, drafts)), len(sequences))
            if not self._has_room(sequences, num_nodes):
                drafts, num_nodes = [draft.only(()) for draft in drafts], 0
        self._load(sequences)
        parts = tuple(_Part(s, tuple(self._scheduler.allocate_slots(1 + num_nodes))) for s in sequences)
        try:
            launched = self.runner.launch(
                [sequence.table_row for sequence in sequences],
                [part.slots for part in parts],
                num_nodes,
                max_keys=self._max_keys(sequences),
                drafts=drafts,
                filtered=any(is_filtered(sequence.request.sampling) for sequence in sequences),
                adapted=any(sequence.root is not None for sequence in sequences),
            )
        except BaseException:
            for part in parts:
                self._scheduler.free_slots(part.slots)
            raise
        self._in_flight.append(_InFlight(launched, parts, num_nodes, None if drafts is None else tuple(drafts)))
        self._phase_seconds["host"] += time.perf_counter() - started
        return True

    def _host_drafts(self, sequences: Many[Sequence]) -> list[Draft]:
        """Returns one draft per sequence: from the request's prediction if it has one, otherwise from the drafter."""
        room = self._scheduler.pool.num_available - len(sequences)
        drafts = given_drafts(sequences, room)
        longest = self._largest_node_count(len(sequences))
        drafts = {sequence: draft.likeliest(longest) for sequence, draft in drafts.items()}
        drafting = [sequence for sequence in sequences if sequence not in drafts]
        sizes = [PassSize.of_rows(1 + len(draft), sequence.num_computed) for sequence, draft in drafts.items()]
        room -= sum(map(len, drafts.values()))
        proposed = self._drafting.propose(drafting, room, others=sum(sizes, NO_ROWS))
        drafts |= {s: draft.likeliest(longest) for s, draft in zip(drafting, proposed, strict=True)}
        return [drafts[sequence] for sequence in sequences]

    def _schedule(self) -> tuple[list[Sequence], int]:
        """Returns the sequences of the next step and their number of draft nodes.

        Returns no sequences if there are too few free cache slots until a step in flight is read.
        """
        sequences = self._unfinished()
        num_nodes = self._nodes_to_request(sequences) if sequences else 0
        while sequences and not self._has_room(sequences, num_nodes):
            if num_nodes:
                num_nodes = max(count for count in self._node_counts if count < num_nodes)
            elif self._in_flight:
                return [], 0
            else:
                victim = self._scheduler.preempt_latest()
                self._loaded.discard(victim)
                self._drafting.forget(victim.request.request_id)
                sequences = [sequence for sequence in sequences if sequence is not victim]
        return sequences, num_nodes

    def _max_keys(self, sequences: Many[Sequence]) -> int:
        """Returns an upper bound of the number of keys that a row of the next step attends to.

        The next step and each step in flight lengthen a sequence by at most MAX_DEPTH draft nodes and one token.
        """
        return max(len(sequence.tokens) for sequence in sequences) + (len(self._in_flight) + 1) * (1 + MAX_DEPTH)

    def _unfinished(self) -> list[Sequence]:
        """Returns the sequences that will still be running if every graph step in flight adds just one token."""
        num_in_flight: dict[Sequence, int] = {}
        for flight in self._in_flight:
            for part in flight.parts:
                num_in_flight[part.sequence] = num_in_flight.get(part.sequence, 0) + 1
        running = self._scheduler.running.values()
        decoding = [sequence for sequence in running if sequence.is_decoding and self.decodes(sequence)]
        return [sequence for sequence in decoding if sequence.num_remaining > num_in_flight.get(sequence, 0)]

    def _nodes_to_request(self, sequences: Many[Sequence]) -> int:
        """Returns the number of draft nodes per sequence, which the budget computes from the steps read so far."""
        if self._drafts_on_host or self.drafter is None:
            return 0
        if all(sequence.num_remaining - len(self._in_flight) <= 1 for sequence in sequences):
            return 0
        return self._node_count(self._drafting.budget.nodes_to_request(len(sequences)), len(sequences))

    def _stacks_are_ready(self, sequences: Many[Sequence]) -> bool:
        """Loads the adapters of `sequences` into the LoRA stacks.

        Returns False if the stacks cannot be rebuilt yet, because steps in flight still use their present indices.
        """
        roots = [sequence.root for sequence in sequences]
        if self._stacks is None or (self._stacks.has(roots) and self._stacks.version == self._stacks_version):
            return True
        if self._in_flight:
            return False
        if not self._stacks.has(roots):
            self._stacks.rebuild_with(roots)
        self._stacks_version = self._stacks.version
        self._loaded.clear()
        return True

    def _has_room(self, sequences: Many[Sequence], num_nodes: int) -> bool:
        return len(sequences) * (1 + num_nodes) <= self._scheduler.pool.num_available

    def _load(self, sequences: Many[Sequence]) -> None:
        """Writes new cache slots to the slot tables, and the state of new sequences to their batch slots."""
        entries: tuple[list[int], list[int], list[int]] = ([], [], [])  # table rows, positions, cache slots
        for sequence in sequences:
            new = range(sequence.num_tabled, len(sequence.slots))
            entries[0].extend([sequence.table_row] * len(new))
            entries[1].extend(new)
            entries[2].extend(sequence.slots[sequence.num_tabled :])
            sequence.num_tabled = len(sequence.slots)
            if sequence not in self._loaded:
                adapter = -1 if self._stacks is None else self._stacks.index(sequence.root)
                self.batch_slots.load_sequence(sequence, adapter)
                if self.drafter is not None:
                    self.drafter.load_sequence(sequence)
                self._loaded.add(sequence)
        self._cache.write_tables(*entries)

    def _read(self) -> list[StepOutput]:
        """Waits for the oldest graph step and commits its results."""
        flight = self._in_flight.popleft()
        launched = flight.launched
        outcomes = Outcome.of(launched.result.wait(), flight.num_nodes)
        started = time.perf_counter()
        draft_seconds = launched.drafted.seconds_since(launched.began)
        verify_seconds = launched.ended.seconds_since(launched.drafted)
        num_rows = 1 + flight.num_nodes
        size = sum((PassSize.of_rows(num_rows, part.sequence.num_computed) for part in flight.parts), NO_ROWS)
        outputs: list[StepOutput] = []
        kept: list[Kept] = []
        drafts: list[tuple[Draft, int]] = []  # drafts, each with the position of the sequence's last token
        for index, (part, outcome) in enumerate(zip(flight.parts, outcomes, strict=False)):
            sequence = part.sequence
            if self._scheduler.running.get(sequence.request.request_id) is not sequence:
                self._loaded.discard(sequence)
                self._scheduler.free_slots(part.slots)  # the sequence ended before this step was read
                continue
            draft = outcome.draft if flight.drafts is None else flight.drafts[index]
            position, first_row = sequence.num_computed, index * num_rows
            drafts.append((draft, position))
            self._assign_slots(part, outcome)
            output, path = self._commit_tokens(sequence, draft, outcome.tokens, outcome.path, failed=outcome.failed)
            outputs.append(output)
            if output.finish_reason:
                self._loaded.discard(sequence)
            else:
                kept.append(Kept(sequence, position, (first_row, *(first_row + 1 + node for node in path))))
        if flight.num_nodes and flight.drafts is None and drafts:  # `admit` records the gain; its result is not used
            self._drafting.budget.admit([d for d, _ in drafts], [position for _, position in drafts], draft_seconds)
        self._drafting.budget.record_pass(size, verify_seconds)
        if launched.hidden is not None:
            hidden = launched.hidden
            taps = None if hidden.taps is None else hidden.taps.clone()
            self._drafting.observe(Pass(hidden.final.clone(), taps, tuple(kept)))
        self._phase_seconds["draft"] += draft_seconds
        self._phase_seconds["verify"] += verify_seconds
        self._phase_seconds["host"] += time.perf_counter() - started
        return outputs

    @staticmethod
    def _assign_slots(part: _Part, outcome: Outcome) -> None:
        """Adds the step's cache slots to the sequence; the device has written the kept slots to the slot table."""
        sequence = part.sequence
        # If the scheduler has replaced slots by the slots of a shared block, `_load` writes the new slots to the table.
        if sequence.num_tabled == len(sequence.slots):
            sequence.num_tabled += 1 + len(outcome.path)
        sequence.slots.append(part.slots[0])
        sequence.draft_slots = list(part.slots[1:])

    def _node_count(self, wanted: int, num_sequences: int) -> int:
        """Returns the smallest allowed number of draft nodes that is at least `wanted`, or the largest allowed one."""
        largest = self._largest_node_count(num_sequences)
        return next(count for count in self._node_counts if count >= min(wanted, largest))

    def _largest_node_count(self, num_sequences: int) -> int:
        if self._node_counts != _NODE_COUNTS:  # the configuration fixes the number
            return self._node_counts[-1]
        nodes = _MAX_ROWS_OF_MANY_NODES // num_sequences - 1
        return max(count for count in _NODE_COUNTS if count <= max(nodes, _MANY_NODES))
