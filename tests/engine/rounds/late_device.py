"""A device that does nothing before it must: what the host asks of it waits in line until somebody waits for a result.

So whatever the host decides while a round is in flight, it decides without knowing anything of that round, as with a
GPU. What a test's engine does at once, passes over prompts, first brings the line up to date, as a stream would.
"""

import time
from collections import deque

import pytest
import torch
from torch import Tensor

from engine.kv_cache import KVCache
from engine.rounds.device import Fetch, HostDevice, Mark, Program
from engine.rows import RowBuilder


class LateDevice(HostDevice):
    def __init__(self) -> None:
        self._line: deque[Program] = deque()
        self.most_in_line = 0  # results asked for and not made yet
        self._asked = self._made = 0

    def program(self, function: Program) -> Program:
        return lambda: self._line.append(function)

    def put(self, target: Tensor, values: Tensor) -> None:
        copy = values.clone()

        def later() -> None:
            target.copy_(copy)

        self._line.append(later)

    def fetch(self, source: Tensor) -> Fetch:
        fetch = _LateCopy(self, source)
        self._line.append(fetch.make)
        self._asked += 1
        self.most_in_line = max(self.most_in_line, self._asked - self._made)
        return fetch

    def mark(self) -> Mark:
        return _NoMark()

    def work(self, until: "_LateCopy | None" = None) -> None:
        """All that is in line, or up to that result."""
        with torch.inference_mode():
            while self._line and (until is None or until.values is None):
                self._line.popleft()()

    def made(self) -> None:
        self._made += 1


class _LateCopy:
    def __init__(self, device: LateDevice, source: Tensor) -> None:
        self._device = device
        self._source = source
        self.values: Tensor | None = None

    def make(self) -> None:
        self.values = self._source.clone()
        self._device.made()

    def wait(self) -> Tensor:
        self._device.work(self)
        assert self.values is not None
        return self.values


class _NoMark:
    def __init__(self) -> None:
        self._at = time.perf_counter()

    def seconds_since(self, earlier: Mark) -> float:
        return 1e-3


def install(monkeypatch: pytest.MonkeyPatch, device: LateDevice) -> None:
    """Engines made from now on decode on it, where they decode in rounds."""
    build, write_tables = RowBuilder.build, KVCache.write_tables

    def late_build(builder: RowBuilder) -> object:
        device.work()
        return build(builder)

    def late_write_tables(cache: KVCache, rows: list[int], positions: list[int], slots: list[int]) -> None:
        if slots:
            device.work()
        write_tables(cache, rows, positions, slots)

    monkeypatch.setattr("engine.rounds.assembly.device_of", lambda _: device)
    monkeypatch.setattr(RowBuilder, "build", late_build)
    monkeypatch.setattr(KVCache, "write_tables", late_write_tables)
