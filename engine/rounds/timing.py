"""How long a round takes on the device and the host, by the very programs that serve."""

import statistics
import time
from dataclasses import dataclass

from engine.draft import MAX_DEPTH, Draft, chain
from engine.rounds.lanes import Lanes
from engine.rounds.runner import Runner


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """Medians over some rounds."""

    verify_seconds: float  # the pass, choosing, accepting, and what the drafter reads of it
    draft_seconds: float  # 0 where the device does not draft
    host_seconds: float  # that launching takes the host; below the device's time it does not show


def time_round(
    runner: Runner, lanes: Lanes, *, num_sequences: int, num_nodes: int, context: int, repeats: int
) -> RoundTimes:
    """Rounds of sequences that have `context` tokens each, in slots of their own as far as the cache has them.

    Where the device does not draft, trees are chains, beyond 64 nodes binary. Lanes and slots must be nobody's.
    """
    rows = range(num_sequences)
    for row in rows:
        lanes.place(row, context)
    fresh = iter(range(num_sequences * context, num_sequences * (context + 1 + num_nodes)))
    slots = [[next(fresh) % lanes.padding_slot for _ in range(1 + num_nodes)] for _ in rows]
    drafts = None if runner.drafts else [_tree(num_nodes)] * num_sequences
    for _ in range(2):  # the first compiles and captures
        runner.launch(rows, slots, num_nodes, drafts=drafts).result.wait()
    host: list[float] = []
    launched = []
    for _ in range(repeats):  # none waits for the one before, as in serving
        started = time.perf_counter()
        launched.append(runner.launch(rows, slots, num_nodes, drafts=drafts))
        host.append(time.perf_counter() - started)
    return RoundTimes(
        verify_seconds=statistics.median(one.ended.seconds_since(one.drafted) for one in launched),
        draft_seconds=statistics.median(one.drafted.seconds_since(one.began) for one in launched),
        host_seconds=statistics.median(host),
    )


def verify_seconds(runner: Runner, lanes: Lanes, num_nodes: int) -> float:
    """Of a round of the lane that is nobody's, which may be taken while sequences decode but none is in flight."""
    slots = [[lanes.padding_slot] * (1 + num_nodes)]
    drafts = None if runner.drafts else [_tree(num_nodes)]
    launched = runner.launch([lanes.padding_row], slots, num_nodes, drafts=drafts)
    launched.result.wait()
    return launched.ended.seconds_since(launched.drafted)


def _tree(num_nodes: int) -> Draft:
    if num_nodes <= MAX_DEPTH:
        return chain([0] * num_nodes, [1.0] * num_nodes)
    parents = [-1, *((node - 1) // 2 for node in range(1, num_nodes))]
    return Draft((0,) * num_nodes, tuple(parents), (1.0,) * num_nodes)
