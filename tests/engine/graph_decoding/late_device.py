"""A fake device that executes work as late as possible: work stays in a queue until the host waits for a result.

Therefore the host always schedules before it has the results of the graph steps in flight, as can happen with a GPU.
A prefill pass first executes the queue and then runs at once, because a CUDA stream also keeps this order.
"""

import time
from collections import deque

import pytest
import torch
from torch import Tensor

from engine.cache.kv_cache import KVCache
from engine.graph_decoding.device import Fetch, HostDevice, Mark, Program
from engine.rows import RowBuilder
from kernels.attention import AttentionRows


class LateDevice(HostDevice):
    def __init__(self) -> None:
        self._queue: deque[Program] = deque()
        self.most_queued = 0  # maximum number of copies to the host that were in the queue at the same time
        self._requested = self._executed = 0

    def program(self, function: Program) -> Program:
        return lambda: self._queue.append(function)

    def put(self, target: Tensor, values: Tensor) -> None:
        copy = values.clone()

        def later() -> None:
            target.copy_(copy)

        self._queue.append(later)

    def fetch(self, source: Tensor) -> Fetch:
        fetch = _LateCopy(self, source)
        self._queue.append(fetch.execute)
        self._requested += 1
        self.most_queued = max(self.most_queued, self._requested - self._executed)
        return fetch

    def mark(self) -> Mark:
        return _FixedMark()

    def execute_queue(self, until: "_LateCopy | None" = None) -> None:
        """Executes the whole queue, or its entries up to the copy `until`."""
        with torch.inference_mode():
            while self._queue and (until is None or until.values is None):
                self._queue.popleft()()

    def count_executed_copy(self) -> None:
        self._executed += 1


class _LateCopy:
    def __init__(self, device: LateDevice, source: Tensor) -> None:
        self._device = device
        self._source = source
        self.values: Tensor | None = None

    def execute(self) -> None:
        self.values = self._source.clone()
        self._device.count_executed_copy()

    def wait(self) -> Tensor:
        self._device.execute_queue(self)
        assert self.values is not None
        return self.values


class _FixedMark:
    """A mark in the queue. The time between any two marks is always one millisecond."""

    def __init__(self) -> None:
        self._at = time.perf_counter()

    def seconds_since(self, earlier: Mark) -> float:
        return 1e-3


def install(monkeypatch: pytest.MonkeyPatch, device: LateDevice) -> None:
    """Makes engines that are created later use this device for graph decoding, and checks the bounds of their rows."""
    build, write_tables, check = RowBuilder.build, KVCache.write_tables, AttentionRows.check

    def late_build(builder: RowBuilder) -> object:
        device.execute_queue()
        return build(builder)

    def late_write_tables(cache: KVCache, rows: list[int], positions: list[int], slots: list[int]) -> None:
        if slots:
            device.execute_queue()
        write_tables(cache, rows, positions, slots)

    def check_bounds(rows: AttentionRows) -> None:
        """Checks max_seqs and max_keys, from which CUDA kernels compute their grids. CPU kernels ignore them."""
        check(rows)
        if rows.max_seqs is not None:
            assert len(rows.seqs.unique_consecutive()) <= rows.max_seqs
        if rows.max_keys is not None:
            assert int((rows.prefix_lens + rows.path_lens).max()) <= rows.max_keys

    monkeypatch.setattr("engine.graph_decoding.setup.device_of", lambda _: device)
    monkeypatch.setattr(AttentionRows, "check", check_bounds)
    monkeypatch.setattr(RowBuilder, "build", late_build)
    monkeypatch.setattr(KVCache, "write_tables", late_write_tables)
