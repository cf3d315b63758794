"""Measures how long work takes on the device.

On CUDA the work is captured into a graph once. Each repetition overwrites the L2 cache and then replays the graph
between two events. Overwriting also keeps the device busy while the host submits the graph, so that the measured time
has no gaps.
"""

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from benchmarks.samples import Spread

Work = Callable[[], object]
TimedRun = Callable[[], float]  # runs the work once and returns the seconds it took

_WARM_UPS = 3
_FLUSH_BYTES = 512 << 20  # written to evict the L2 cache, which has 50 MB on an H100 and 60 MB on an H200
_MAX_SECONDS = 1.5  # after this time, `interleaved` stops if it has `_MIN_REPEATS` repetitions
_MIN_REPEATS = 5


class Clock(Protocol):
    def prepared(self, work: Work) -> TimedRun:
        """Compiles, warms up and captures the work. The returned function then times only its execution."""


class HostClock:
    """The clock for dry runs on a CPU."""

    def prepared(self, work: Work) -> TimedRun:
        work()

        def timed_run() -> float:
            started = time.perf_counter()
            work()
            return time.perf_counter() - started

        return timed_run


class CudaClock:
    def __init__(self) -> None:
        self._flush = torch.empty(_FLUSH_BYTES, dtype=torch.uint8, device="cuda")

    def prepared(self, work: Work) -> TimedRun:
        side_stream = torch.cuda.Stream()  # work must be warmed up on a side stream before it is captured
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(_WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

        def timed_run() -> float:
            self._flush.zero_()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

        return timed_run


def clock_of(device: torch.device) -> Clock:
    return CudaClock() if device.type == "cuda" else HostClock()


def interleaved(timed_runs: Mapping[str, TimedRun], repeats: int) -> dict[str, Spread]:
    """Runs the functions in turn, `repeats` times or as often as `_MAX_SECONDS` allow, and returns their times.

    Every second repetition has the reverse order, so that a period of lower clock rates affects all equally.
    """
    seconds_of: dict[str, list[float]] = {name: [] for name in timed_runs}
    started = time.perf_counter()
    for number in range(repeats):
        names = list(timed_runs) if number % 2 == 0 else list(timed_runs)[::-1]
        for name in names:
            seconds_of[name].append(timed_runs[name]())
        if number + 1 >= _MIN_REPEATS and time.perf_counter() - started > _MAX_SECONDS:
            break
    return {name: _spread(seconds) for name, seconds in seconds_of.items()}


def _spread(seconds: list[float]) -> Spread:
    spread = Spread.of(seconds)
    assert spread is not None  # there is at least one repetition
    return spread
