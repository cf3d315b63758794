"""Times graph steps on the device and on the host, with the same programs that serve requests."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cost import CostModel
from engine.draft import MAX_DEPTH, Draft, chain
from engine.graph_decoding.batch_slots import BatchSlots
from engine.graph_decoding.runner import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphStepTimes:
    """Medians over several graph steps."""

    verify_seconds: float  # forward pass, sampling, acceptance, and the drafter's observation of the pass
    draft_seconds: float  # if drafts are not made on the device, the time to copy them to the device
    host_seconds: float  # time to launch the step, which overlaps with the device's previous step


@torch.inference_mode()
def time_graph_step(
    runner: Runner,
    batch_slots: BatchSlots,
    *,
    num_sequences: int,
    num_nodes: int,
    context: int,
    max_context: int,
    repeats: int,
) -> GraphStepTimes:
    """Times graph steps of sequences that have `context` tokens and `num_nodes` draft nodes each.

    If drafts are not made on the device, each sequence gets a chain if `num_nodes <= MAX_DEPTH`, otherwise a binary
    tree.

    Raises: ValueError: too many sequences or tokens.
    Effects: overwrites batch slots and cache slots, so no request may be running and no prefix may be cached.
    """
    if not (1 <= num_sequences <= batch_slots.padding_row and 1 <= context <= max_context):
        limits = f"1..{batch_slots.padding_row} sequences with 1..{max_context} tokens each"
        raise ValueError(f"expected {limits}, got {num_sequences} sequences with {context} tokens each")
    needed = num_sequences * (context + 1 + num_nodes)
    if needed > batch_slots.padding_slot:
        raise ValueError(f"the cache has {batch_slots.padding_slot} slots, the graph step needs {needed}")
    rows = range(num_sequences)
    for row in rows:
        batch_slots.fill_for_timing(row, context)
    unused = iter(range(num_sequences * context, needed))
    slots = [[next(unused) for _ in range(1 + num_nodes)] for _ in rows]
    drafts = None if runner.drafts_on_device else [_tree(num_nodes)] * num_sequences
    max_keys = context + 1 + MAX_DEPTH  # steps do not lengthen a sequence beyond `context`
    for _ in range(2):  # the first launch compiles the kernels, the second captures the graph
        runner.launch(rows, slots, num_nodes, max_keys=max_keys, drafts=drafts).result.wait()
    host: list[float] = []
    launched = []
    for _ in range(repeats):  # no launch waits for an earlier step, as in serving
        started = time.perf_counter()
        launched.append(runner.launch(rows, slots, num_nodes, max_keys=max_keys, drafts=drafts))
        host.append(time.perf_counter() - started)
    return GraphStepTimes(
        verify_seconds=statistics.median(step.ended.seconds_since(step.drafted) for step in launched),
        draft_seconds=statistics.median(step.drafted.seconds_since(step.began) for step in launched),
        host_seconds=statistics.median(host),
    )


@torch.inference_mode()
def measure_graph_steps(runner: Runner, batch_slots: BatchSlots, node_counts: Sequence[int]) -> CostModel:
    """Measures the cost model of verification: times graph steps with a single sequence, for each number of draft nodes
    in `node_counts`.

    The steps use only the padding slot, so this can be called while requests are active, but only between two graph
    steps.
    """
    row_counts = [1 + count for count in node_counts]
    return CostModel.measure(lambda num_rows: _verify_seconds(runner, batch_slots, num_rows - 1), row_counts)


def _verify_seconds(runner: Runner, batch_slots: BatchSlots, num_nodes: int) -> float:
    slots = [[batch_slots.padding_slot] * (1 + num_nodes)]
    drafts = None if runner.drafts_on_device else [_tree(num_nodes)]
    launched = runner.launch([batch_slots.padding_row], slots, num_nodes, max_keys=1 + MAX_DEPTH, drafts=drafts)
    launched.result.wait()
    return launched.ended.seconds_since(launched.drafted)


def _tree(num_nodes: int) -> Draft:
    if num_nodes <= MAX_DEPTH:
        return chain([0] * num_nodes, [1.0] * num_nodes)
    parents = [-1, *((node - 1) // 2 for node in range(1, num_nodes))]
    return Draft((0,) * num_nodes, tuple(parents), (1.0,) * num_nodes)
