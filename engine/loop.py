"""The engine: schedule, draft, score, verify, commit.

One step makes one pass. Its rows are chunks of prompts being read, the last token of every sequence that decodes, and
the nodes drafted under it. The pass scores them all; verification keeps what sampling confirms; kept nodes' slots move
into the sequence's table. What a drafter proposes decides how fast this goes and nothing else.

On a GPU sequences decode in rounds (engine/rounds), which the device goes through by itself: there a step reads chunks
of prompts, launches the next round, and returns what the one before brought.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.adapters import Adapters
from engine.budget import DraftBudget
from engine.config import EngineConfig
from engine.cost import CostModel
from engine.counters import Counters
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Kept, Pass
from engine.drafting import Drafting
from engine.errors import RequestTooLong
from engine.kv_cache import KVCache
from engine.lora_stacks import stacks_for
from engine.model import Decoder
from engine.models.base import Model
from engine.request import FinishReason, Request, SpeculationStats, StepOutput, TokenLogprob
from engine.rounds.assembly import SPARE_POSITIONS, RoundParts, serves_rounds
from engine.rounds.rounds import Rounds, fits_rounds, node_counts
from engine.rounds.runner import Runner
from engine.rounds.timing import RoundTimes, time_round, verify_seconds
from engine.rows import RowBuilder
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence
from engine.verify import Verdict, token_logprobs, verify

_MAX_DRAFT_NODES = 32  # per sequence, where the budget is adaptive
_PREFILL_ROWS_PER_STEP = 512


@dataclass(frozen=True, slots=True)
class _Part:
    """A sequence's rows of a pass: a chunk of its text (`draft` is None), or its last token and the nodes under it."""

    sequence: Sequence
    rows: tuple[int, ...]
    draft: Draft | None


class Engine:
    """Not thread-safe: one thread adds, cancels and steps."""

    def __init__(self, model: Model, drafter: Drafter, config: EngineConfig) -> None:
        self.model = model
        self.config = config
        self.adapters = Adapters(model.config, model.dtype, model.device, supported=isinstance(model, Decoder))
        self._stacks = stacks_for(self.adapters, model.device)
        self.eos_token_ids = model.config.eos_token_ids
        self.uses_rounds = serves_rounds(model, config)
        self._node_counts = node_counts(config.draft_budget)
        adaptive_most = self._node_counts[-1] if self.uses_rounds else _MAX_DRAFT_NODES
        self._max_nodes = adaptive_most if config.draft_budget is None else config.draft_budget
        context = min(config.max_seq_len or model.max_positions, model.max_positions)
        self.cache = self._make_cache(context, drafter.slot_bytes)
        self.max_seq_len = min(context, self.cache.num_slots)
        self.scheduler = Scheduler(
            self.cache.num_slots,
            max_batch_size=config.max_batch_size,
            prefill_chunk=config.prefill_chunk,
            prefill_rows=_PREFILL_ROWS_PER_STEP,
        )
        self.phase_seconds = dict.fromkeys(("prefill", "draft", "verify", "sample", "host"), 0.0)
        self._counters = Counters()
        self._ready: list[StepOutput] = []  # that the next step returns
        self._cost: CostModel | None = None
        self._round_parts = RoundParts(model, self.cache, self._stacks) if self.uses_rounds else None
        self._rounds: Rounds | None = None
        self.swap_drafter(drafter)

    @property
    def drafter(self) -> Drafter:
        return self._drafting.drafter

    @property
    def num_running(self) -> int:
        return len(self.scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def has_work(self) -> bool:
        in_flight = self._rounds is not None and self._rounds.has_work
        return bool(self.scheduler.running or self.scheduler.waiting or self._ready or in_flight)

    @property
    def counters(self) -> Counters:
        scheduler, counters = self.scheduler, self._counters
        counters.num_preemptions = scheduler.num_preemptions
        counters.prefix_queries, counters.prefix_hits = scheduler.prefix_queries, scheduler.prefix_hits
        counters.kv_usage = 1.0 - scheduler.pool.num_available / scheduler.pool.num_slots
        return counters

    def add(self, request: Request) -> None:
        """Raises: RequestTooLong: can never fit; ValueError: no prompt, foreign token or adapter, id in use."""
        prompt, length = request.prompt_token_ids, len(request.prompt_token_ids) + request.sampling.max_tokens
        if not prompt:
            raise ValueError("prompt_token_ids must not be empty")
        named = (*prompt, *(token for token, _ in request.sampling.logit_bias))
        if not all(0 <= token < self.model.config.vocab_size for token in named):
            raise ValueError(f"prompt_token_ids and logit_bias must be in 0..{self.model.config.vocab_size - 1}")
        if length > self.max_seq_len:
            answer = request.sampling.max_tokens
            raise RequestTooLong(f"prompt and answer may have {self.max_seq_len} tokens, got {len(prompt)} + {answer}")
        if self.scheduler.find(request.request_id) is not None:
            raise ValueError(f"request_id {request.request_id!r} is in use")
        stats = SpeculationStats(num_spec_tokens=self.drafter.max_depth)
        adapter = self.adapters.default if request.adapter is None else self.adapters.get(request.adapter)
        grammar = request.sampling.grammar
        constraint = None if grammar is None else grammar.start()
        self.scheduler.add(Sequence(request, list(prompt), root=adapter, stats=stats, constraint=constraint))

    def cancel(self, request_id: str) -> None:
        """The next step's outputs hold the request's end; an unknown or finished id changes nothing."""
        sequence = self.scheduler.find(request_id)
        if sequence is not None:
            self._end(sequence)
            self._ready.append(StepOutput(request_id, (), None, FinishReason.CANCELLED, sequence.stats))

    def swap_drafter(self, drafter: Drafter) -> None:
        """From the next step on this one drafts; answers under way go on and stay the same."""
        if self._rounds is not None:
            self._ready += self._rounds.leave()
        drafter.prepare(self.cache)
        runner, on_device = self._round_parts.runner(drafter) if self._round_parts is not None else (None, None)
        adaptive = drafter.max_depth > 0 and self.config.draft_budget is None
        if adaptive and self._cost is None:
            self._cost = self._measure(runner)
        budget = DraftBudget(self._cost if adaptive else None, self._max_nodes)
        vocab_size = self.model.config.vocab_size
        self._drafting = Drafting(drafter, budget, max_nodes=self._max_nodes, vocab_size=vocab_size)
        if runner is not None and self._round_parts is not None:
            self._rounds = Rounds(
                runner,
                self._round_parts.lanes,
                self.cache,
                self.scheduler,
                self._drafting,
                on_device,
                stacks=self._stacks,
                finish=self._finish,
                node_counts=self._node_counts,
                phase_seconds=self.phase_seconds,
            )

    @torch.inference_mode()
    def time_round(self, num_sequences: int, num_nodes: int, *, context: int, repeats: int = 20) -> RoundTimes:
        """What a round costs of so many sequences, of `context` tokens each, with so many nodes each.

        Raises: ValueError: there are no rounds, or requests; or more than the engine takes.
        """
        if self._rounds is None or self.has_work:
            raise ValueError("rounds are measured on an engine that decodes in rounds and has no request")
        if not (1 <= num_sequences <= self.config.max_batch_size and 1 <= context <= self.max_seq_len):
            most = f"1..{self.config.max_batch_size} sequences of 1..{self.max_seq_len} tokens"
            raise ValueError(f"there may be {most}, got {num_sequences} of {context}")
        if num_sequences * (context + 1 + num_nodes) > self.cache.num_slots:
            needed = num_sequences * (context + 1 + num_nodes)
            raise ValueError(f"the cache has {self.cache.num_slots} slots, such a round needs {needed}")
        self.scheduler.pool.forget_idle()  # their slots are written to
        return time_round(
            self._rounds.runner,
            self._rounds.lanes,
            num_sequences=num_sequences,
            num_nodes=num_nodes,
            context=context,
            repeats=repeats,
        )

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """Raises: what the model or a kernel raises; whoever runs then has to be cancelled before the next step."""
        outputs, self._ready = self._ready, []
        if self._rounds is None:
            return outputs + self._step(self.scheduler.schedule)
        if not self._all_fit_rounds():
            return outputs + self._rounds.leave() + self._step(self.scheduler.schedule)
        outputs += self._step(self.scheduler.schedule_prefills)  # may admit one that does not fit
        return outputs + (self._rounds.step() if self._all_fit_rounds() else self._rounds.leave())

    def _all_fit_rounds(self) -> bool:
        adapters = self._stacks is not None
        return all(fits_rounds(sequence, adapters=adapters) for sequence in self.scheduler.running.values())

    def _step(self, schedule: Callable[[], Plan]) -> list[StepOutput]:
        """Schedules a pass and makes it; the host decides everything, and waits for it."""
        started = time.perf_counter()
        plan = schedule()
        for sequence in plan.preempted:
            self._drafting.forget(sequence.request.request_id)
        if not plan.prefills and not plan.decoding:
            return []
        prefill_rows = sum(end - sequence.num_computed for sequence, end in plan.prefills)
        scheduled = time.perf_counter()
        drafts = self._drafting.propose(plan.decoding, prefill_rows, self.scheduler.pool.num_available)
        drafted = time.perf_counter()
        builder = RowBuilder(self.cache, self._stacks)
        parts = self._parts(plan, drafts, builder)
        rows, wanted = builder.build()
        hidden = self.model.forward(rows, self.cache, self.drafter.tap_layers)
        logits = self.model.logits(hidden.final[wanted])
        scored = time.perf_counter()
        outputs, kept = self._commit(parts, logits)
        ended = time.perf_counter()
        if not plan.prefills:
            self._drafting.budget.record_pass(builder.num_rows, ended - drafted)
        self._drafting.observe(Pass(hidden.final, hidden.taps, kept))
        self.phase_seconds["host"] += scheduled - started
        self.phase_seconds["draft"] += drafted - scheduled + time.perf_counter() - ended
        self.phase_seconds["prefill" if plan.prefills else "verify"] += scored - drafted
        self.phase_seconds["sample"] += ended - scored
        return outputs

    def _parts(self, plan: Plan, drafts: Many[Draft], builder: RowBuilder) -> list[_Part]:
        parts = [_Part(sequence, builder.add_prefill(sequence, end), None) for sequence, end in plan.prefills]
        for sequence, draft in zip(plan.decoding, drafts, strict=True):
            self.scheduler.allocate_drafts(sequence, len(draft))
            parts.append(_Part(sequence, builder.add_draft(sequence, draft), draft))
        return parts

    def _commit(self, parts: list[_Part], logits: Tensor) -> tuple[list[StepOutput], tuple[Kept, ...]]:
        """`logits`: of the rows that choose a token, in the order of `parts`."""
        outputs: list[StepOutput] = []
        kept: list[Kept] = []
        first = 0
        for part in parts:
            sequence, rows, position = part.sequence, part.rows, part.sequence.num_computed
            if part.draft is None and position + len(rows) < len(sequence.tokens):  # more of its text is to come
                self.scheduler.advance(sequence, position + len(rows))
                kept.append(Kept(sequence, position, rows))
                continue
            draft = part.draft or EMPTY_DRAFT
            own = logits[first : first + 1 + len(draft)]
            first += 1 + len(draft)
            output, path = self._choose(sequence, draft, own)
            if part.draft is not None:
                self._record(sequence, draft, path)
                rows = (rows[0], *(rows[1 + node] for node in path))
            outputs.append(output)
            if output.finish_reason:
                self._end(sequence)
            else:
                kept.append(Kept(sequence, position, rows))
        return outputs, tuple(kept)

    def _choose(self, sequence: Sequence, draft: Draft, logits: Tensor) -> tuple[StepOutput, tuple[int, ...]]:
        """Verifies and commits, up to the answer's end. Returns what was added and the nodes kept."""
        sampling = sequence.request.sampling
        verdict = verify(logits, draft, sequence, self.eos_token_ids)
        output, path = self._add(sequence, verdict.tokens, verdict.path)
        if sampling.num_logprobs is not None:
            logprobs = _logprobs(logits, verdict, output.token_ids, sampling.num_logprobs)
            output = replace(output, logprobs=logprobs)
        return output, path

    def _finish(
        self, sequence: Sequence, draft: Draft, tokens: tuple[int, ...], path: tuple[int, ...]
    ) -> tuple[StepOutput, tuple[int, ...]]:
        """As `_choose`, of what a round brought."""
        output, path = self._add(sequence, tokens, path)
        self._record(sequence, draft, path)
        if output.finish_reason:
            self._end(sequence)
        return output, path

    def _add(
        self, sequence: Sequence, tokens: tuple[int, ...], path: tuple[int, ...]
    ) -> tuple[StepOutput, tuple[int, ...]]:
        added, finish_reason = self._until_end(sequence, tokens)
        path = path[: len(added) - 1]
        self.scheduler.commit(sequence, added, path)
        stats = sequence.stats if finish_reason else None
        return StepOutput(sequence.request.request_id, tuple(added), None, finish_reason, stats), path

    def _record(self, sequence: Sequence, draft: Draft, path: tuple[int, ...]) -> None:
        sequence.stats.record(drafted=len(draft), accepted=len(path))
        self._counters.record(drafted=len(draft), accepted=len(path))
        self._drafting.budget.record(draft, path)

    def _until_end(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[list[int], FinishReason | None]:
        sampling = sequence.request.sampling
        stops = sampling.stop_token_ids if sampling.ignore_eos else sampling.stop_token_ids | self.eos_token_ids
        kept: list[int] = []
        for token in tokens:
            kept.append(token)
            if token in stops:
                return kept, FinishReason.STOP
            if len(kept) == sequence.num_remaining:
                return kept, FinishReason.LENGTH
        return kept, None

    def _end(self, sequence: Sequence) -> None:
        self.scheduler.remove(sequence)
        self._drafting.forget(sequence.request.request_id)

    def _make_cache(self, max_seq_len: int, drafter_slot_bytes: int) -> KVCache:
        # In rounds a sequence holds slots of two of them, the last token's included.
        drafted = 2 * (1 + self._max_nodes) if self.uses_rounds else self._max_nodes
        config, most = self.model.config, self.config.max_batch_size * (max_seq_len + drafted)
        slot_bytes = KVCache.slot_bytes(config, self.model.dtype) + drafter_slot_bytes
        return KVCache(
            config,
            num_slots=max(1, min(most, self.config.kv_cache_bytes // slot_bytes)),
            max_sequences=self.config.max_batch_size + self.uses_rounds,
            max_seq_len=max_seq_len + SPARE_POSITIONS * self.uses_rounds,
            dtype=self.model.dtype,
            device=self.model.device,
            num_spare_slots=int(self.uses_rounds),
        )

    @torch.inference_mode()
    def _time_pass(self, num_rows: int) -> float:
        """Seconds of a pass over rows of empty sequences and of their logits; the slots must be nobody's."""
        builder = RowBuilder(self.cache)
        slots = self.scheduler.pool.allocate(min(num_rows, self.scheduler.pool.num_available))
        for slot in slots:
            builder.add_row(token=0, position=0, slot=slot, table_row=0, prefix_len=0, path=(slot,))
        rows, _ = builder.build()
        started = time.perf_counter()
        self.model.logits(self.model.forward(rows, self.cache).final)
        self.scheduler.pool.free(slots)
        return time.perf_counter() - started

    @torch.inference_mode()
    def _measure(self, runner: Runner | None) -> CostModel:
        """What a pass costs, in rounds the one of a `runner`."""
        if runner is None or self._round_parts is None:
            return CostModel.measure(self._time_pass)
        lanes = self._round_parts.lanes
        row_counts = [1 + count for count in self._node_counts]
        return CostModel.measure(lambda rows: verify_seconds(runner, lanes, rows - 1), row_counts)


def _logprobs(logits: Tensor, verdict: Verdict, tokens: Many[int], count: int) -> tuple[TokenLogprob, ...]:
    row_of = (0, *(node + 1 for node in verdict.path))
    return tuple(token_logprobs(logits[row], token, count) for row, token in zip(row_of, tokens, strict=False))
