"""Measures the times of a decoding step, for several context lengths and numbers n of draft nodes.

    T_plain      the device's time for a step without a draft
    T_verify(n)  the device's time for a step that verifies a draft of n nodes
    T_draft      the device's time for drafting
    T_host       the host's time to launch a step

The measured steps use the same CUDA graphs and the same layout of the KV cache as steps that serve requests
(`Engine.time_graph_step`). T_plain is compared with a lower bound: the bytes of the weights and of the context's keys
and values, divided by the bandwidth of a copy.
"""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.gpu.library_operations import with_library_operations
from benchmarks.gpu.peak_rates import PeakRates, Work
from benchmarks.gpu.shapes import pass_bytes
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaConfig, MedusaHeads
from engine.drafters.none import NoDrafter
from engine.graph_decoding.timing import GraphStepTimes
from engine.loop import Engine
from engine.models.dense import Decoder

_TURNS = 3  # measurements of each step; their median is reported
_REPEATS = 20  # graph steps per turn
_LONGEST_PATH = 64  # nodes; the maximum that the attention kernel supports
_DRAFT_VOCAB = 32_000
_MEDUSA_HEADS = 4
_NUM_DRAFT_NODES = 16
_BUDGET = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    context: int
    nodes: int
    verify_seconds: float
    host_seconds: float  # T_host, which does not delay the next step if the device takes longer


@dataclass(frozen=True, slots=True)
class Plan:
    contexts: tuple[int, ...]
    nodes: tuple[int, ...]  # 0, which is plain decoding, first

    @property
    def longest(self) -> int:
        """The maximum length of a sequence, if every step accepts a whole path."""
        return max(self.contexts) + (_REPEATS + 2) * (1 + min(max(self.nodes), _LONGEST_PATH))


def make_engine(model: Decoder, max_seq_len: int, *, batch_size: int = 1, drafter: Drafter | None = None) -> Engine:
    """Makes an engine for `batch_size` sequences of `max_seq_len` tokens, with graph decoding even on a CPU."""
    config = EngineConfig(
        max_batch_size=batch_size,
        max_seq_len=max_seq_len,
        kv_cache_bytes=1 << 60,
        draft_budget=_BUDGET,
        graph_decoding="on",
    )
    return Engine(model, drafter or NoDrafter(), config)


def step_table(engine: Engine, plan: Plan) -> list[Step]:
    """Measures all combinations of context and nodes, in several turns."""
    sizes = [(context, nodes) for context in plan.contexts for nodes in plan.nodes]
    times_of: dict[tuple[int, int], list[GraphStepTimes]] = {size: [] for size in sizes}
    for _ in range(1 + _TURNS):  # the first turn compiles and captures, so its times are ignored
        for size in sizes:
            times_of[size].append(_time_step(engine, *size))
    return [
        Step(
            context=context,
            nodes=nodes,
            verify_seconds=statistics.median(times.verify_seconds for times in times_of[context, nodes][1:]),
            host_seconds=statistics.median(times.host_seconds for times in times_of[context, nodes][1:]),
        )
        for context, nodes in sizes
    ]


def _time_step(engine: Engine, context: int, nodes: int) -> GraphStepTimes:
    return engine.time_graph_step(1, nodes, context=context, repeats=_REPEATS)


def with_shares(steps: Sequence[Step], model: Decoder, peak_rates: PeakRates) -> list[dict[str, Any]]:
    """Returns table rows: each step with its time relative to the plain step, and each plain step with the share of the
    copy bandwidth that it reaches.
    """
    plain = {step.context: step.verify_seconds for step in steps if step.nodes == 0}
    table = []
    for step in steps:
        row = asdict(step) | {"over_plain": step.verify_seconds / plain[step.context]}
        if step.nodes == 0:
            work = Work(num_bytes=pass_bytes(model.config, model.dtype.itemsize, context=step.context, batch=1))
            row["share_of_bandwidth"] = work.share(step.verify_seconds, peak_rates)
        table.append(row)
    return table


def draft_seconds(model: Decoder, context: int) -> dict[str, float]:
    """Returns T_draft by drafter. The only drafter has randomly initialized Medusa heads with a reduced vocabulary."""
    vocab_size = min(_DRAFT_VOCAB, model.config.vocab_size)
    config = MedusaConfig(hidden_size=model.config.hidden_size, num_heads=_MEDUSA_HEADS, draft_vocab_size=vocab_size)
    heads = MedusaHeads(config, torch.arange(vocab_size))
    drafter = MedusaDrafter(heads, model)
    engine = make_engine(model, Plan((context,), (_NUM_DRAFT_NODES,)).longest, drafter=drafter)
    times = [_time_step(engine, context, _NUM_DRAFT_NODES) for _ in range(_TURNS + 1)][1:]
    return {"medusa": statistics.median(step_times.draft_seconds for step_times in times)}


def row_invariance_cost(model: Decoder, context: int, nodes: Sequence[int]) -> list[dict[str, float]]:
    """Measures the ratio of step times with and without row-invariant operations, for each number of nodes.

    Raises: RuntimeError: some row-invariant operations were not replaced.
    """
    length = Plan((context,), tuple(nodes)).longest
    engines = {"exact": make_engine(model, length), "off": make_engine(model, length)}
    with with_library_operations(context) as num_calls:
        for count in nodes:
            _time_step(engines["off"], context, count)  # captures graphs, which are replayed below
    if model.device.type == "cuda" and not {"products", "attention", "head"} <= num_calls.keys():
        raise RuntimeError(f"must replace products, attention and head, replaced only {sorted(num_calls)}")
    seconds: dict[tuple[str, int], list[float]] = {(name, count): [] for name in engines for count in nodes}
    for turn in range(_TURNS + 1):
        for name in sorted(engines, reverse=turn % 2 == 0):
            for count in nodes:
                seconds[name, count].append(_time_step(engines[name], context, count).verify_seconds)
    rows = []
    for count in nodes:
        exact, off = (statistics.median(seconds[name, count][1:]) for name in ("exact", "off"))
        rows.append({"nodes": count, "exact_seconds": exact, "off_seconds": off, "exact_over_off": exact / off})
    return rows
