"""Chooses the sequences of the next pass and allocates their cache slots.

    add ─▶ waiting ─▶ running: prompt read in chunks ─▶ decoding ─▶ remove
              ▲────────── preempted, the latest first ────┘

A sequence is admitted when there are slots for its prompt and its answer so far. While it decodes, each new token takes
one slot. When no slot is left, the latest admitted sequence is preempted: its slots are freed, and it is prefilled
again later. The scheduler does not handle tensors.

Prompts are read in turns of one chunk, so a short prompt does not wait until earlier long prompts have been read.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from engine.cache.slots import BLOCK, Block, SlotPool
from engine.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sequences of one pass.

    prefills: each sequence with the position up to which it is prefilled.
    decoding: sequences with one pending token.
    preempted: sequences whose slots were freed for this pass.
    """

    prefills: tuple[tuple[Sequence, int], ...]
    decoding: tuple[Sequence, ...]
    preempted: tuple[Sequence, ...]


class Scheduler:
    def __init__(self, num_slots: int, *, max_batch_size: int, prefill_chunk: int, prefill_rows: int) -> None:
        """
        Args:
            prefill_chunk: chunks of a prompt end at multiples of this length.
            prefill_rows: no further chunk is added to a pass that has this many prefill rows.
        """
        self.pool = SlotPool(num_slots)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[str, Sequence] = {}
        self._reading: dict[Sequence, None] = {}  # sequences with chunks to prefill, the next one first
        self.num_preemptions = 0
        self.prefix_queries = 0  # tokens looked up in the prefix cache; vLLM counts them in the same way
        self.prefix_hits = 0
        self._prefill_chunk = prefill_chunk
        self._prefill_rows = prefill_rows
        self._free_rows = list(range(max_batch_size - 1, -1, -1))

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def find(self, request_id: str) -> Sequence | None:
        if request_id in self.running:
            return self.running[request_id]
        return next((sequence for sequence in self.waiting if sequence.request.request_id == request_id), None)

    def remove(self, sequence: Sequence) -> None:
        """Removes a sequence that finished or was cancelled."""
        if self.running.pop(sequence.request.request_id, None) is None:
            self.waiting.remove(sequence)
        else:
            self._release(sequence)

    def schedule(self, sequences: Iterable[Sequence] | None = None) -> Plan:
        """Allocates a slot for every decoding sequence, admits requests that fit, and plans the chunks to prefill.

        sequences: the running sequences that may decode in this pass; None: all of them. Other running
            sequences, which decode in graph steps (engine/graph_decoding), may be preempted, too.
        """
        preempted: list[Sequence] = []
        decoding = []
        for sequence in list(self.running.values()) if sequences is None else sequences:
            if sequence.is_decoding and sequence not in preempted:
                preempted += self._make_room(sequence)
                if sequence not in preempted:
                    sequence.slots += self.pool.allocate(len(sequence.tokens) - len(sequence.slots))
                    decoding.append(sequence)
        if not preempted:
            self._admit()
        return Plan(prefills=tuple(self._chunks()), decoding=tuple(decoding), preempted=tuple(preempted))

    def allocate_slots(self, count: int) -> list[int]:
        """Allocates slots for a sequence in a graph step."""
        return self.pool.allocate(count)

    def free_slots(self, slots: Iterable[int]) -> None:
        """Frees the slots of a sequence that ended before the result of its graph step was read."""
        self.pool.free(list(slots))

    def preempt_latest(self) -> Sequence:
        """Preempts the latest admitted sequence and returns it."""
        victim = next(reversed(self.running.values()))
        self._preempt(victim)
        return victim

    def allocate_drafts(self, sequence: Sequence, count: int) -> None:
        sequence.draft_slots = self.pool.allocate(count)

    def commit(self, sequence: Sequence, tokens: Iterable[int], kept_nodes: Iterable[int]) -> None:
        """Appends sampled tokens. The slots of kept nodes join the sequence; the slots of other nodes are freed."""
        kept = [sequence.draft_slots[node] for node in kept_nodes]
        self.pool.free([slot for slot in sequence.draft_slots if slot not in kept])
        sequence.draft_slots = []
        sequence.slots += kept
        sequence.tokens += tokens
        self.advance(sequence, len(sequence.tokens) - 1)

    def advance(self, sequence: Sequence, num_computed: int) -> None:
        """Records that the cache contains the positions up to `num_computed`; full blocks can be shared now."""
        sequence.num_computed = num_computed
        while (end := BLOCK * (len(sequence.blocks) + 1)) <= num_computed:
            start = end - BLOCK
            before = sequence.blocks[-1] if sequence.blocks else sequence.root
            own = tuple(sequence.slots[start:end])
            block = self.pool.register(before, tuple(sequence.tokens[start:end]), own)
            sequence.blocks.append(block)
            if block.slots != own:  # another sequence has computed the same block, with equal bits
                sequence.slots[start:end] = block.slots
                sequence.num_tabled = min(sequence.num_tabled, start)

    def _make_room(self, sequence: Sequence) -> list[Sequence]:
        """Preempts the latest sequences until a slot is free; `sequence` itself may be the last of them."""
        preempted = []
        while self.pool.num_available < 1:
            victim = self.preempt_latest()
            preempted.append(victim)
            if victim is sequence:
                break
        return preempted

    def _preempt(self, sequence: Sequence) -> None:
        del self.running[sequence.request.request_id]
        self._release(sequence)
        self.waiting.appendleft(sequence)
        self.num_preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.draft_slots)
        self.pool.free(sequence.slots[BLOCK * len(sequence.blocks) :])
        self.pool.release(sequence.blocks)
        self._free_rows.append(sequence.table_row)
        self._reading.pop(sequence, None)
        sequence.slots, sequence.blocks, sequence.draft_slots = [], [], []
        sequence.table_row, sequence.num_tabled, sequence.num_computed = -1, 0, 0

    def _admit(self) -> None:
        while self.waiting and self._free_rows:
            sequence = self.waiting[0]
            blocks: list[Block] = []
            if not sequence.needs_prompt_logits:
                blocks = self.pool.match(sequence.root, sequence.tokens, sequence.found_blocks)
            num_shared = BLOCK * len(blocks)
            needed = len(sequence.tokens) - num_shared
            # Each running sequence needs one more slot; otherwise the admitted sequence would be preempted at once.
            if self.pool.num_available_after_holding(blocks) < needed + len(self.running):
                return
            self.waiting.popleft()
            self.pool.hold(blocks)
            sequence.blocks, sequence.found_blocks = blocks, []
            sequence.slots = [slot for block in blocks for slot in block.slots] + self.pool.allocate(needed)
            sequence.num_computed = num_shared
            sequence.table_row = self._free_rows.pop()
            self.running[sequence.request.request_id] = sequence
            self._reading[sequence] = None
            if sequence.num_generated == 0:
                sequence.stats.num_cached_tokens = num_shared
                self.prefix_queries += len(sequence.tokens)
                self.prefix_hits += num_shared

    def _chunks(self) -> Iterable[tuple[Sequence, int]]:
        """Yields one chunk of each sequence in turn; a sequence with more chunks then goes to the end of the line."""
        num_rows, chunk = 0, self._prefill_chunk
        for sequence in list(self._reading):
            if num_rows >= self._prefill_rows:
                return
            if sequence.is_decoding:  # it was preempted, and now only its last token is pending
                del self._reading[sequence]
                continue
            end = min(len(sequence.tokens), (sequence.num_computed // chunk + 1) * chunk)
            num_rows += end - sequence.num_computed
            del self._reading[sequence]
            if end < len(sequence.tokens):
                self._reading[sequence] = None
            yield sequence, end
