"""Timing of work on the device.

On CUDA the work is captured into a graph once. Each repetition overwrites the L2 cache, which also keeps the device
busy while the host submits, and then replays the graph between two events. Arms alternate in both directions, so that
a period of lower clocks affects them equally.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from benchmarks.samples import Spread

Work = Callable[[], object]
Once = Callable[[], float]  # runs the work once, returns its seconds

_WARM_UPS = 3
_FLUSH_BYTES = 512 << 20  # an H100 has 50 MB of L2, an H200 60
_ROUND_SECONDS = 1.5  # if a round of all arms takes longer, few repetitions are enough
_FEWEST = 5


class Clock(Protocol):
    def prepared(self, work: Work) -> Once:
        """Compiles, warms up and captures the work, so that the returned function times only the work."""


class HostClock:
    """The clock for rehearsals on a CPU."""

    def prepared(self, work: Work) -> Once:
        work()

        def once() -> float:
            started = time.perf_counter()
            work()
            return time.perf_counter() - started

        return once


class CudaClock:
    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def prepared(self, work: Work) -> Once:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def once() -> float:
            self._flush.zero_()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

        return once


def clock_of(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else HostClock()


def interleaved(arms: Mapping[str, Once], repeats: int) -> dict[str, Spread]:
    """Runs each arm `repeats` times, alternating; fewer times if that takes long."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    started = time.perf_counter()
    for number in range(repeats):
        names = list(arms) if number % 2 == 0 else list(arms)[::-1]
        for name in names:
            taken[name].append(arms[name]())
        if number + 1 >= _FEWEST and time.perf_counter() - started > _ROUND_SECONDS:
            break
    return {name: _spread(seconds) for name, seconds in taken.items()}


def _spread(seconds: list[float]) -> Spread:
    spread = Spread.of(seconds)
    assert spread is not None  # there is at least one repetition
    return spread
