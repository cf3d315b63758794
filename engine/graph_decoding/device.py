"""The operations of a device that graph decoding uses: replayable programs, asynchronous copies, and a clock.

On CUDA a program becomes a graph. Its first run launches the kernels one by one, which compiles and warms them up. Then
the program is captured, and later runs launch the whole graph at once. All graphs share one memory pool, because only
one of them runs at a time. A program therefore writes results that are needed after its run to tensors that were
allocated outside of it.

Source: CUDA graphs in PyTorch; one memory pool for all graphs, as in vLLM.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

logger = logging.getLogger(__name__)

Program = Callable[[], None]


class Mark(Protocol):
    """A point in the device's queue of work."""

    def seconds_since(self, earlier: "Mark") -> float:
        """Waits until the device has reached both points, and returns the time between them."""


class Fetch(Protocol):
    """An asynchronous copy to the host."""

    def wait(self) -> Tensor: ...


class Device(Protocol):
    def program(self, function: Program) -> Program:
        """Returns a replayable form of `function`.

        `function` must read and write tensors at fixed addresses and must not synchronize with the device.
        """

    def put(self, target: Tensor, values: Tensor) -> None:
        """Queues a copy of `values`, which may be on any device, to `target`, and returns without waiting."""

    def fetch(self, source: Tensor) -> Fetch:
        """Queues a copy of `source` to the host. The copy happens after the work that is already queued."""

    def mark(self) -> Mark: ...


def device_of(device: torch.device) -> Device:
    return CudaDevice(device) if device.type == "cuda" else HostDevice()


class CudaDevice:
    def __init__(self, device: torch.device) -> None:
        # "thread_local", because other threads load adapters and speculators and may allocate memory during a capture
        pool = torch.cuda.graph_pool_handle()
        self._capture = partial(torch.cuda.graph, pool=pool, capture_error_mode="thread_local")
        self._copies = torch.cuda.Stream(device)

    def program(self, function: Program) -> Program:
        return _Graph(function, self._capture)

    def put(self, target: Tensor, values: Tensor) -> None:
        target.copy_(values if values.is_cuda else values.pin_memory(), non_blocking=True)

    def fetch(self, source: Tensor) -> Fetch:
        return _PinnedCopy(source, self._copies)

    def mark(self) -> Mark:
        return _EventMark()


class _Graph:
    """The first call runs `function` and then captures it; later calls replay the graph."""

    def __init__(
        self, function: Program, capture: Callable[[torch.cuda.CUDAGraph], AbstractContextManager[None]]
    ) -> None:
        self._function = function
        self._capture = capture
        self._run: Program | None = None

    def __call__(self) -> None:
        if self._run is not None:
            self._run()
            return
        self._function()
        self._run = self._captured()

    def _captured(self) -> Program:
        graph = torch.cuda.CUDAGraph()
        try:
            with self._capture(graph):
                self._function()
        except RuntimeError:
            logger.exception("a program can't be captured in a graph; its kernels will be launched one by one")
            return self._function
        return graph.replay


class _PinnedCopy:
    def __init__(self, source: Tensor, stream: torch.cuda.Stream) -> None:
        snapshot = source.clone()  # the next step may overwrite `source` before it is copied
        self._values = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            self._values.copy_(snapshot, non_blocking=True)
            self._done = torch.cuda.Event()
            self._done.record(stream)
        snapshot.record_stream(stream)

    def wait(self) -> Tensor:
        self._done.synchronize()
        return self._values


class _EventMark:
    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _EventMark)  # a mark of the same device
        self._event.synchronize()
        return float(earlier._event.elapsed_time(self._event)) / 1000.0


class HostDevice:
    """Runs everything synchronously on the CPU, in the same order."""

    def program(self, function: Program) -> Program:
        return function

    def put(self, target: Tensor, values: Tensor) -> None:
        target.copy_(values)

    def fetch(self, source: Tensor) -> Fetch:
        return _HostCopy(source)

    def mark(self) -> Mark:
        return _ClockMark()


class _HostCopy:
    def __init__(self, source: Tensor) -> None:
        self._values = source.clone()

    def wait(self) -> Tensor:
        return self._values


class _ClockMark:
    def __init__(self) -> None:
        self._at = time.perf_counter()

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _ClockMark)  # a mark of the same device
        return self._at - earlier._at
