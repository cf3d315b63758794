"""The engine: schedule, draft, score, verify, commit.

One step makes one pass. Its rows are chunks of prompts being read, the last token of every sequence that decodes, and
the nodes drafted under it. The pass scores them all; verification keeps what sampling confirms; kept nodes' slots move
into the sequence's table. What a drafter proposes decides how fast this goes and nothing else.
"""

import logging
import time
from collections import deque

import torch
from torch import Tensor

from engine.budget import CostModel, DraftBudget
from engine.config import EngineConfig
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Kept, Pass
from engine.errors import RequestTooLong
from engine.kv_cache import KVCache
from engine.model import Decoder
from engine.request import FinishReason, Request, SpeculationStats, StepOutput, TokenLogprob
from engine.rows import RowBuilder
from engine.sequence import Committed, Sequence
from engine.verify import Verdict, token_logprobs, verify

logger = logging.getLogger(__name__)

_MAX_DRAFT_NODES = 24
_PREFILL_ROWS_PER_STEP = 512

_Work = tuple[Sequence, Draft, tuple[int, ...]]  # and its rows of the pass: a prompt's chunk, or root and nodes


class Engine:
    """Not thread-safe: one thread adds, cancels and steps."""

    def __init__(self, model: Decoder, drafter: Drafter, config: EngineConfig) -> None:
        self.model = model
        self.drafter = drafter
        self.config = config
        self.eos_token_ids = model.config.eos_token_ids
        self.max_seq_len = min(config.max_seq_len or model.max_positions, model.max_positions)
        nodes = _MAX_DRAFT_NODES if config.draft_budget is None else min(_MAX_DRAFT_NODES, config.draft_budget)
        self._max_nodes = nodes if drafter.max_depth > 0 else 0
        self.cache = self._make_cache()
        self.max_seq_len = min(self.max_seq_len, self.cache.num_slots - self._max_nodes)
        self.phase_seconds = dict.fromkeys(("prefill", "draft", "verify", "sample", "host"), 0.0)
        self._waiting: deque[Request] = deque()
        self._running: dict[str, Sequence] = {}
        self._cancelled: list[StepOutput] = []
        self._budget = self._make_budget()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting or self._cancelled)

    def add(self, request: Request) -> None:
        """Raises: RequestTooLong: prompt and answer can't fit; ValueError: empty prompt, foreign token, id in use."""
        prompt, length = request.prompt_token_ids, len(request.prompt_token_ids) + request.sampling.max_tokens
        if not prompt:
            raise ValueError("prompt_token_ids must not be empty")
        if not all(0 <= token < self.model.config.vocab_size for token in prompt):
            raise ValueError(f"prompt_token_ids must be in 0..{self.model.config.vocab_size - 1}")
        if length > self.max_seq_len:
            answer = request.sampling.max_tokens
            raise RequestTooLong(f"prompt and answer may have {self.max_seq_len} tokens, got {len(prompt)} + {answer}")
        if request.request_id in self._running or any(r.request_id == request.request_id for r in self._waiting):
            raise ValueError(f"request_id {request.request_id!r} is in use")
        self._waiting.append(request)

    def cancel(self, request_id: str) -> None:
        """The next step's outputs hold the request's end; an unknown or finished id changes nothing."""
        sequence = self._running.get(request_id)
        if sequence is not None:
            self._end(sequence)
            stats = sequence.stats
        elif any(request.request_id == request_id for request in self._waiting):
            self._waiting = deque(request for request in self._waiting if request.request_id != request_id)
            stats = None
        else:
            return
        self._cancelled.append(StepOutput(request_id, (), None, FinishReason.CANCELLED, stats))

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """Raises: what the model or a kernel raises; whoever runs then has to be cancelled before the next step."""
        outputs, self._cancelled = self._cancelled, []
        self._admit()
        if not self._running:
            return outputs
        started = time.perf_counter()
        decoding = [sequence for sequence in self._running.values() if sequence.is_decoding]
        builder = RowBuilder(self.cache)
        prefilling = self._schedule_prefill(builder)
        scheduled = time.perf_counter()
        drafts = self._draft(decoding, builder.num_rows)
        drafted = time.perf_counter()
        work: list[_Work] = [(sequence, EMPTY_DRAFT, rows) for sequence, rows in prefilling]
        for sequence, draft in zip(decoding, drafts, strict=True):
            first = builder.add_draft(sequence, draft)
            work.append((sequence, draft, tuple(range(first, first + 1 + len(draft)))))
        rows, wanted = builder.build()
        hidden = self.model.forward(rows, self.cache, self.drafter.tap_layers)
        logits = self.model.logits(hidden.final[wanted])
        scored = time.perf_counter()
        committed, kept = self._commit(work, logits)
        outputs += committed
        self._observe(Pass(hidden.final, hidden.taps, kept))
        ended = time.perf_counter()
        self.phase_seconds["host"] += scheduled - started
        self.phase_seconds["draft"] += drafted - scheduled
        self.phase_seconds["prefill" if prefilling else "verify"] += scored - drafted
        self.phase_seconds["sample"] += ended - scored
        return outputs

    def _make_cache(self) -> KVCache:
        config, most = self.model.config, self.config.max_batch_size * (self.max_seq_len + _MAX_DRAFT_NODES)
        affordable = self.config.kv_cache_bytes // KVCache.slot_bytes(config, self.model.dtype)
        return KVCache(
            config,
            num_slots=max(1, min(most, affordable)),
            max_sequences=self.config.max_batch_size,
            max_seq_len=self.max_seq_len,
            dtype=self.model.dtype,
            device=self.model.device,
        )

    def _make_budget(self) -> DraftBudget:
        adaptive = self._max_nodes > 0 and self.config.draft_budget is None
        cost = CostModel.measure(self._time_pass) if adaptive else None
        return DraftBudget(cost, self._max_nodes)

    @torch.inference_mode()
    def _time_pass(self, num_rows: int) -> float:
        """Seconds of a pass over rows of empty sequences and of their logits."""
        builder = RowBuilder(self.cache)
        num_rows = min(num_rows, self.cache.num_slots)
        for slot in range(num_rows):
            builder.add_row(token=0, position=0, slot=slot, table_row=0, prefix_len=0, path=(slot,))
        rows, _ = builder.build()
        started = time.perf_counter()
        self.model.logits(self.model.forward(rows, self.cache).final)
        return time.perf_counter() - started

    def _admit(self) -> None:
        while self._waiting:
            request = self._waiting[0]
            needed = len(request.prompt_token_ids) + request.sampling.max_tokens + self._max_nodes
            if not self.cache.can_reserve(needed):
                return
            self._waiting.popleft()
            row = self.cache.reserve(needed)
            stats = SpeculationStats(num_spec_tokens=self.drafter.max_depth)
            tokens = list(request.prompt_token_ids)
            self._running[request.request_id] = Sequence(request, tokens, row, needed, stats)

    def _schedule_prefill(self, builder: RowBuilder) -> list[tuple[Sequence, tuple[int, ...]]]:
        """Adds the next chunk of prompts still being read, oldest first, up to a number of rows."""
        scheduled = []
        for sequence in self._running.values():
            if sequence.is_decoding or builder.num_rows >= _PREFILL_ROWS_PER_STEP:
                continue
            chunk = self.config.prefill_chunk
            end = min(len(sequence.tokens), (sequence.num_computed // chunk + 1) * chunk)
            scheduled.append((sequence, builder.add_prefill(sequence, end)))
            sequence.num_computed = end
        return scheduled

    def _draft(self, decoding: list[Sequence], other_rows: int) -> list[Draft]:
        if not decoding or self._budget.largest == 0:
            return [EMPTY_DRAFT] * len(decoding)
        try:
            drafts = self.drafter.propose(decoding, self._budget.largest)
            limited = [self._limited(s, d) for s, d in zip(decoding, drafts, strict=True)]
        except Exception:  # a drafter's fault of any kind costs speed only
            logger.exception("drafter %s failed; decoding plainly", self.drafter.name)
            return [EMPTY_DRAFT] * len(decoding)
        return self._budget.admit(limited, other_rows)

    def _limited(self, sequence: Sequence, draft: Draft) -> Draft:
        """Without nodes that could not be kept any more, and none of unknown tokens or above the reservation."""
        vocab_size, deepest = self.model.config.vocab_size, sequence.num_remaining - 1
        kept: list[int] = []
        for node, depth in enumerate(draft.depths()):
            parent_kept = draft.parents[node] < 0 or draft.parents[node] in kept
            possible = depth <= deepest and 0 <= draft.tokens[node] < vocab_size
            if possible and parent_kept and len(kept) < self._max_nodes:
                kept.append(node)
        return draft if len(kept) == len(draft) else draft.only(kept)

    def _commit(self, work: list[_Work], logits: Tensor) -> tuple[list[StepOutput], tuple[Kept, ...]]:
        """`logits`: of the rows that choose a token, in the order of `work`."""
        outputs: list[StepOutput] = []
        kept: list[Kept] = []
        first = 0
        for sequence, draft, rows in work:
            if sequence.num_computed < len(sequence.tokens) and not sequence.is_decoding:  # more of its prompt to come
                kept.append(Kept(sequence, sequence.num_computed - len(rows), rows))
                continue
            own = logits[first : first + 1 + len(draft)]
            first += 1 + len(draft)
            verdict = verify(own, draft, sequence.request.sampling, len(sequence.tokens))
            committed = self._keep(sequence, verdict, own)
            if len(sequence.tokens) - len(committed.token_ids) > len(sequence.request.prompt_token_ids):
                sequence.stats.record(drafted=len(draft), accepted=len(committed.token_ids) - 1)
                self._budget.record(draft, verdict.path)
                rows = (rows[0], *(rows[1 + node] for node in verdict.path))
            stats = sequence.stats if committed.finish_reason else None
            outputs.append(
                StepOutput(
                    sequence.request.request_id, committed.token_ids, committed.logprobs, committed.finish_reason, stats
                )
            )
            if committed.finish_reason:
                self._end(sequence)
            else:
                kept.append(Kept(sequence, sequence.num_computed - len(rows), rows))
        return outputs, tuple(kept)

    def _observe(self, done: Pass) -> None:
        try:
            self.drafter.observe(done)
        except Exception:  # a drafter's fault of any kind costs speed only
            logger.exception("drafter %s failed to observe a pass", self.drafter.name)

    def _keep(self, sequence: Sequence, verdict: Verdict, rows: Tensor) -> Committed:
        """Appends what was verified, up to the answer's end, and moves kept nodes' slots into the table."""
        tokens, finish_reason = self._until_end(sequence, verdict.tokens)
        kept = [sequence.draft_slots[node] for node in verdict.path[: len(tokens) - 1]]
        self.cache.free([slot for slot in sequence.draft_slots if slot not in kept])
        sequence.draft_slots = []
        self.cache.append(sequence.table_row, len(sequence.slots), kept)
        sequence.slots += kept
        sequence.tokens += tokens
        sequence.num_computed = len(sequence.tokens) - 1
        logprobs: tuple[TokenLogprob, ...] | None = None
        count = sequence.request.sampling.num_logprobs
        if count is not None:
            row_of = (0, *(node + 1 for node in verdict.path))
            places = zip(row_of, tokens, strict=False)
            logprobs = tuple(token_logprobs(rows[row], token, count) for row, token in places)
        return Committed(tuple(tokens), logprobs, finish_reason)

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
        del self._running[sequence.request.request_id]
        self.cache.release(sequence.table_row, sequence.num_reserved, sequence.slots + sequence.draft_slots)
        self.drafter.forget(sequence.request.request_id)
