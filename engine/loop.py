"""The engine: schedule, draft, score, verify, commit.

One step makes one forward pass. Its rows are chunks of prompts, the last token of every decoding sequence, and the
draft nodes below that token. Verification keeps the nodes whose tokens equal the sampled ones, and the cache slots of
kept nodes move into the sequence's slot table. The drafts determine the speed of decoding and never its output.

On a GPU, most sequences decode in captured graphs (engine/graph_decoding). If only the host can sample the tokens of a
sequence, the sequence decodes in a synchronous pass, together with chunks of prompts. A step then makes this pass,
launches the next graph step, and returns the tokens of the pass and of the previous graph step.
"""

import time
from collections.abc import Iterable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from engine.budget import DraftBudget
from engine.cache.sizing import make_cache
from engine.config import EngineConfig
from engine.cost import NO_ROWS, CostModel, PassSize
from engine.counters import Counters
from engine.draft import EMPTY_DRAFT, Draft
from engine.drafters.base import Drafter, Kept, Pass
from engine.drafting import Drafting
from engine.errors import NonFiniteLogits, RequestTooLong
from engine.fingerprint import Fingerprint
from engine.given_drafts import given_drafts
from engine.grammars.grammar import Constraint
from engine.graph_decoding.decoder import GraphDecoder, node_counts
from engine.graph_decoding.setup import GraphDecodingSetup, uses_graph_decoding
from engine.graph_decoding.timing import GraphStepTimes, measure_graph_steps, time_graph_step
from engine.lora.adapters import Adapters
from engine.lora.stacks import stacks_for
from engine.models.base import Model
from engine.models.quantized.report import UNKNOWN, WeightsReport
from engine.pass_timing import measure_passes
from engine.prediction import PredictionFollower
from engine.prompt_logprobs import score_prompt
from engine.request import FinishReason, Request, SamplingParams, SpeculationStats, StepOutput, TokenLogprob
from engine.row_invariance import NOT_TESTED, RowInvariance
from engine.rows import RowBuilder
from engine.scheduler import Plan, Scheduler
from engine.sequence import Sequence
from engine.thinking import ThinkingConstraint
from engine.verify import Verdict, token_logprobs, verify

MAX_DRAFT_NODES = 32  # per sequence without graph decoding, if config.draft_budget is None
_PREFILL_ROWS_PER_STEP = 512


@dataclass(frozen=True, slots=True)
class _Part:
    """A sequence's rows in a pass: a chunk of its prompt (`draft` is None), or its last token and the draft nodes."""

    sequence: Sequence
    rows: tuple[int, ...]
    draft: Draft | None


class Engine:
    """Not thread-safe: one thread must call all methods."""

    def __init__(self, model: Model, drafter: Drafter, config: EngineConfig) -> None:
        self.model = model
        self.config = config
        self.adapters = Adapters(model)
        self._stacks = stacks_for(self.adapters, model.device)
        self.eos_token_ids = model.config.eos_token_ids
        self.row_invariance: RowInvariance = NOT_TESTED  # set by `load_engine`
        self.weights_report: WeightsReport = UNKNOWN  # set by `load_engine`
        self.base_fingerprint: Fingerprint | None = None  # without an adapter; set by `load_engine`
        self.uses_graph_decoding = uses_graph_decoding(model, config)
        self._node_counts = node_counts(config.draft_budget)
        adaptive_max = self._node_counts[-1] if self.uses_graph_decoding else MAX_DRAFT_NODES
        self._max_nodes = adaptive_max if config.draft_budget is None else config.draft_budget
        context = min(config.max_seq_len or model.max_positions, model.max_positions)
        self.cache = make_cache(
            model,
            config,
            max_seq_len=context,
            max_draft_nodes=self._max_nodes,
            drafter_slot_bytes=drafter.slot_bytes,
            graph_decoding=self.uses_graph_decoding,
        )
        self.max_seq_len = min(context, self.cache.num_slots)
        self.scheduler = Scheduler(
            self.cache.num_slots,
            max_batch_size=config.max_batch_size,
            prefill_chunk=config.prefill_chunk,
            prefill_rows=_PREFILL_ROWS_PER_STEP,
        )
        self.phase_seconds = dict.fromkeys(("prefill", "draft", "verify", "sample", "host"), 0.0)
        self._counters = Counters()
        self._ready: list[StepOutput] = []  # outputs for the next step to return
        self._cost: CostModel | None = None
        self._graph_setup = GraphDecodingSetup(model, self.cache, self._stacks) if self.uses_graph_decoding else None
        self._graph_decoder: GraphDecoder | None = None
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
        in_flight = self._graph_decoder is not None and self._graph_decoder.has_work
        return bool(self.scheduler.running or self.scheduler.waiting or self._ready or in_flight)

    @property
    def counters(self) -> Counters:
        scheduler, counters = self.scheduler, self._counters
        counters.num_preemptions = scheduler.num_preemptions
        counters.prefix_queries, counters.prefix_hits = scheduler.prefix_queries, scheduler.prefix_hits
        counters.kv_usage = 1.0 - scheduler.pool.num_available / scheduler.pool.num_slots
        return counters

    def fingerprint(self, adapter: str | None = None) -> Fingerprint | None:
        """Returns the fingerprint of answers with this adapter, or with the default adapter if `adapter` is None.

        Returns None if the engine was not loaded from a folder.

        Raises: ValueError: the adapter is unknown.
        """
        loaded = self.adapters.default if adapter is None else self.adapters.get(adapter)
        return self.base_fingerprint and self.base_fingerprint.with_adapter(None if loaded is None else loaded.sha256)

    def add(self, request: Request) -> None:
        """Queues a request.

        Raises:
            RequestTooLong: prompt and answer together exceed the context or the cache.
            ValueError: the prompt is empty, a token or adapter is unknown, or the request id is in use.
        """
        prompt, length = request.prompt_token_ids, len(request.prompt_token_ids) + request.sampling.max_tokens
        if not prompt:
            raise ValueError("prompt_token_ids must not be empty")
        used = (*prompt, *(token for token, _ in request.sampling.logit_bias), *request.expected_token_ids)
        used += request.prediction_token_ids
        if not all(0 <= token < self.model.config.vocab_size for token in used):
            raise ValueError(f"token ids of a request must be in 0..{self.model.config.vocab_size - 1}")
        if length > self.max_seq_len:
            answer = request.sampling.max_tokens
            raise RequestTooLong(f"prompt and answer may have {self.max_seq_len} tokens, got {len(prompt)} + {answer}")
        if self.scheduler.find(request.request_id) is not None:
            raise ValueError(f"request_id {request.request_id!r} is in use")
        stats = SpeculationStats(num_spec_tokens=self.drafter.max_depth)
        adapter = self.adapters.default if request.adapter is None else self.adapters.get(request.adapter)
        constraint = self._constraint_of(request.sampling)
        prediction = PredictionFollower(request.prediction_token_ids) if request.prediction_token_ids else None
        self.scheduler.add(
            Sequence(request, list(prompt), root=adapter, stats=stats, constraint=constraint, prediction=prediction)
        )

    def _constraint_of(self, sampling: SamplingParams) -> Constraint | None:
        grammar, thinking = None if sampling.grammar is None else sampling.grammar.start(), sampling.thinking
        if thinking is None or (grammar is None and thinking.budget is None):
            return grammar
        vocab_size = self.model.config.vocab_size
        return ThinkingConstraint(thinking, grammar, end_token_ids=self.eos_token_ids, vocab_size=vocab_size)

    def cancel(self, request_id: str) -> None:
        """Ends the request; the next step returns its last output. Ids of unknown and finished requests are ignored."""
        sequence = self.scheduler.find(request_id)
        if sequence is not None:
            self._end(sequence)
            self._ready.append(StepOutput(request_id, (), None, FinishReason.CANCELLED, sequence.stats))

    def swap_drafter(self, drafter: Drafter) -> None:
        """Replaces the drafter from the next step on. The tokens of answers in progress do not change."""
        if self._graph_decoder is not None:
            self._ready += self._graph_decoder.drain()
        drafter.prepare(self.cache)
        if drafter.slot_bytes > 0:  # the new drafter lacks the keys and values of cached prefixes, and would read zeros
            self.scheduler.pool.forget_prefixes()
        runner, on_device = self._graph_setup.runner(drafter) if self._graph_setup is not None else (None, None)
        adaptive = drafter.max_depth > 0 and self.config.draft_budget is None
        if adaptive and self._cost is None:
            if runner is None or self._graph_setup is None:
                self._cost = measure_passes(self.model)
            else:
                self._cost = measure_graph_steps(runner, self._graph_setup.batch_slots, self._node_counts)
        budget = DraftBudget(self._cost if adaptive else None, self._max_nodes)
        vocab_size = self.model.config.vocab_size
        self._drafting = Drafting(drafter, budget, max_nodes=self._max_nodes, vocab_size=vocab_size)
        if runner is not None and self._graph_setup is not None:
            self._graph_decoder = GraphDecoder(
                runner,
                self._graph_setup.batch_slots,
                self.cache,
                self.scheduler,
                self._drafting,
                on_device,
                stacks=self._stacks,
                commit_tokens=self._commit_graph_tokens,
                node_counts=self._node_counts,
                phase_seconds=self.phase_seconds,
            )

    def time_graph_step(self, num_sequences: int, num_nodes: int, *, context: int, repeats: int = 20) -> GraphStepTimes:
        """Times graph steps of sequences that have `context` tokens and `num_nodes` draft nodes each.

        Raises: ValueError: the engine does not use graph decoding, has requests, or has no room for the sequences.
        """
        if self._graph_decoder is None or self.has_work:
            raise ValueError("graph steps are timed on an engine that uses graph decoding and has no request")
        self.scheduler.pool.forget_prefixes()  # the measurement overwrites the slots of cached prefixes
        return time_graph_step(
            self._graph_decoder.runner,
            self._graph_decoder.batch_slots,
            num_sequences=num_sequences,
            num_nodes=num_nodes,
            context=context,
            max_context=self.max_seq_len,
            repeats=repeats,
        )

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """Runs one step. After any exception the caller must cancel every running request before the next step."""
        outputs, self._ready = self._ready, []
        graph_decoder = self._graph_decoder
        if graph_decoder is None:
            return outputs + self._step()
        on_host = [sequence for sequence in self.scheduler.running.values() if not graph_decoder.decodes(sequence)]
        if self.scheduler.pool.num_available < len(on_host):  # no sequence in a graph step may be preempted
            outputs += graph_decoder.drain()
        outputs += self._step(on_host)
        return outputs + graph_decoder.step()

    def _step(self, sequences: Many[Sequence] | None = None) -> list[StepOutput]:
        """Runs one forward pass synchronously: the host schedules it, waits for it and verifies the drafts.

        sequences: the running sequences that may decode in this pass; None: all of them.
        """
        started = time.perf_counter()
        plan = self.scheduler.schedule(sequences)
        for sequence in plan.preempted:
            self._drafting.forget(sequence.request.request_id)
        if not plan.prefills and not plan.decoding:
            return []
        scheduled = time.perf_counter()
        drafts = self._drafts(plan)
        drafted = time.perf_counter()
        builder = RowBuilder(self.cache, self._stacks)
        parts = self._parts(plan, drafts, builder)
        rows, sampling_rows = builder.build()
        size = _size_of((part.sequence, len(part.rows)) for part in parts)
        hidden = self.model.forward(rows, self.cache, self.drafter.tap_layers)
        logits = self.model.logits(hidden.final[sampling_rows])
        scored = time.perf_counter()
        for part in parts:
            if part.sequence.needs_prompt_logits:
                score_prompt(part.sequence, hidden.final[part.rows[0] : part.rows[-1] + 1], self.model.logits)
        outputs, kept = self._commit(parts, logits)
        ended = time.perf_counter()
        if not plan.prefills and self._graph_decoder is None:  # the costs of a graph step differ
            self._drafting.budget.record_pass(size, ended - drafted)
        self._drafting.observe(Pass(hidden.final, hidden.taps, kept))
        self.phase_seconds["host"] += scheduled - started
        self.phase_seconds["draft"] += drafted - scheduled + time.perf_counter() - ended
        self.phase_seconds["prefill" if plan.prefills else "verify"] += scored - drafted
        self.phase_seconds["sample"] += ended - scored
        return outputs

    def _drafts(self, plan: Plan) -> list[Draft]:
        """Returns one draft per decoding sequence: the request's own (given_drafts.py), otherwise the drafter's."""
        room = self.scheduler.pool.num_available
        drafts = given_drafts(plan.decoding, room)
        drafting = [sequence for sequence in plan.decoding if sequence not in drafts]
        room -= sum(map(len, drafts.values()))
        others = [(sequence, end - sequence.num_computed) for sequence, end in plan.prefills]
        others += [(sequence, 1 + len(draft)) for sequence, draft in drafts.items()]
        proposed = self._drafting.propose(drafting, room, others=_size_of(others))
        drafts |= dict(zip(drafting, proposed, strict=True))
        return [drafts[sequence] for sequence in plan.decoding]

    def _parts(self, plan: Plan, drafts: Many[Draft], builder: RowBuilder) -> list[_Part]:
        parts = [_Part(sequence, builder.add_prefill(sequence, end), None) for sequence, end in plan.prefills]
        for sequence, draft in zip(plan.decoding, drafts, strict=True):
            self.scheduler.allocate_drafts(sequence, len(draft))
            parts.append(_Part(sequence, builder.add_draft(sequence, draft), draft))
        return parts

    def _commit(self, parts: list[_Part], logits: Tensor) -> tuple[list[StepOutput], tuple[Kept, ...]]:
        """Verifies drafts and commits tokens. `logits`: of the rows that sample a token, in the order of `parts`."""
        outputs: list[StepOutput] = []
        kept: list[Kept] = []
        first = 0
        for part in parts:
            sequence, rows, position = part.sequence, part.rows, part.sequence.num_computed
            if part.draft is None and position + len(rows) < len(sequence.tokens):  # more chunks follow
                self.scheduler.advance(sequence, position + len(rows))
                kept.append(Kept(sequence, position, rows))
                continue
            draft = part.draft or EMPTY_DRAFT
            part_logits = logits[first : first + 1 + len(draft)]
            first += 1 + len(draft)
            output, path = self._verify_and_commit(sequence, draft, part_logits)
            if sequence.request.sampling.prompt_logprobs and sequence.num_generated == len(output.token_ids):
                output = replace(output, prompt_logprobs=tuple(sequence.prompt_logprobs))
            if part.draft is not None:
                output = self._recorded(output, sequence, draft, path)
                rows = (rows[0], *(rows[1 + node] for node in path))
            outputs.append(output)
            if output.finish_reason:
                self._end(sequence, forget_prefix=output.failure is not None)
            else:
                kept.append(Kept(sequence, position, rows))
        return outputs, tuple(kept)

    def _verify_and_commit(
        self, sequence: Sequence, draft: Draft, logits: Tensor
    ) -> tuple[StepOutput, tuple[int, ...]]:
        """Verifies a draft and commits the tokens up to the end of the answer. Returns the output and kept nodes."""
        sampling = sequence.request.sampling
        verdict = verify(logits, draft, sequence, self.eos_token_ids)
        output, path = self._commit_tokens(sequence, verdict.tokens, verdict.path, failed=verdict.failed)
        if sampling.num_logprobs is not None:
            logprobs = _logprobs(logits, verdict, output.token_ids, sampling.num_logprobs)
            output = replace(output, logprobs=logprobs)
        return output, path

    def _commit_graph_tokens(
        self, sequence: Sequence, draft: Draft, tokens: tuple[int, ...], path: tuple[int, ...], *, failed: bool
    ) -> tuple[StepOutput, tuple[int, ...]]:
        """Commits the tokens that a graph step verified. Returns the output and the kept nodes."""
        output, path = self._commit_tokens(sequence, tokens, path, failed=failed)
        output = self._recorded(output, sequence, draft, path)
        if output.finish_reason:
            self._end(sequence, forget_prefix=output.failure is not None)
        return output, path

    def _commit_tokens(
        self, sequence: Sequence, tokens: tuple[int, ...], path: tuple[int, ...], *, failed: bool
    ) -> tuple[StepOutput, tuple[int, ...]]:
        """Commits verified tokens up to the end of the answer. Returns the output and the kept nodes.

        failed: the logits after `tokens` are not finite, so the request fails unless one of the tokens ends its answer.
        """
        added, finish_reason = self._until_end(sequence, tokens)
        failure = NonFiniteLogits() if failed and finish_reason is None else None
        finish_reason = FinishReason.FAILED if failure is not None else finish_reason
        path = path[: max(0, len(added) - 1)]
        self.scheduler.commit(sequence, added, path)
        if sequence.prediction is not None:
            for token in added:
                sequence.prediction.accept(token)
        stats = sequence.stats if finish_reason else None
        return StepOutput(sequence.request.request_id, tuple(added), None, finish_reason, stats, failure), path

    def _recorded(self, output: StepOutput, sequence: Sequence, draft: Draft, path: tuple[int, ...]) -> StepOutput:
        if sequence.request.expected_token_ids:
            return output  # an audited answer has no statistics of the drafter
        sequence.stats.record(drafted=len(draft), accepted=len(path))
        if sequence.prediction is None:  # the counters and the budget describe only the drafter's own drafts
            self._counters.record(drafted=len(draft), accepted=len(path))
            self._drafting.budget.record(draft, path)
        return replace(output, num_drafted=len(draft))

    def _until_end(self, sequence: Sequence, tokens: tuple[int, ...]) -> tuple[list[int], FinishReason | None]:
        """Returns the tokens up to the end of the answer, and why it ends, or None if no token ends the answer."""
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

    def _end(self, sequence: Sequence, *, forget_prefix: bool = False) -> None:
        """Removes the sequence. `forget_prefix`: its keys and values may be NaN, so no later request may share them."""
        self.scheduler.remove(sequence)
        if forget_prefix:
            self.scheduler.pool.forget_prefixes()
        self._drafting.forget(sequence.request.request_id)


def _size_of(parts: Iterable[tuple[Sequence, int]]) -> PassSize:
    """Returns the size of a pass. `parts`: each sequence in its state before the pass, and its number of rows."""
    return sum((PassSize.of_rows(num_rows, sequence.num_computed) for sequence, num_rows in parts), NO_ROWS)


def _logprobs(logits: Tensor, verdict: Verdict, tokens: Many[int], count: int) -> tuple[TokenLogprob, ...]:
    rows = (0, *(node + 1 for node in verdict.path))  # row 0 belongs to the last token, row i + 1 to node i
    return tuple(token_logprobs(logits[row], token, count) for row, token in zip(rows, tokens, strict=False))
