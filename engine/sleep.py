"""Sleep: gives the memory of an idle engine's weights and KV cache back to the system, and restores it later.

A pass of the C kernels reads weights through pointers, so a tensor must keep its address. Sleep therefore frees no
tensor. It copies the contents of every large tensor of the process to a file and then gives the tensor's pages back
(`MADV_DONTNEED`). Waking reads the file into the same addresses, so each bit is as before. The file contains the model,
the drafter and all tables that were derived from their weights; no list of these tensors is needed. The keys and values
of the target are not copied, and its cached prefixes are forgotten.

The file has no name, so no other process can open it, and the system deletes it when the process ends. Blocks of zeros
are not written.
"""

import ctypes
import gc
import mmap
import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor

from engine.errors import SleepNotSupported
from engine.loop import Engine
from kernels.cpu.library import cache_folder
from kernels.memory import trim_heap

_SMALLEST = 64 << 10  # bytes of the smallest storage whose pages are given back
_BLOCK = 2 << 20
_MADV_DONTNEED = 4


class Range(NamedTuple):
    """Addresses of memory, from `start` inclusive to `end` exclusive."""

    start: int
    end: int


class Sleeper:
    """Call `sleep` and `wake` on the thread of the engine."""

    def __init__(self, engine: Engine, *, folder: Path | None = None) -> None:
        """`folder`: where the contents are kept while the engine sleeps; by default the user's cache folder."""
        self._engine = engine
        self._folder = folder
        self._file: IO[bytes] | None = None  # None: the engine is awake
        self._saved: list[Range] = []
        self._held: list[Tensor] = []  # keeps the tensors alive, because waking overwrites their memory

    @property
    def is_asleep(self) -> bool:
        return self._file is not None

    def check(self) -> None:
        """Raises: SleepNotSupported: this engine cannot sleep."""
        if self._engine.model.device.type != "cpu":
            raise SleepNotSupported("sleep is implemented for CPUs only")
        if self._engine.config.tensor_parallel > 1:
            raise SleepNotSupported("an engine that runs on several processes cannot sleep")
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            raise SleepNotSupported("sleep requires Linux")

    def sleep(self) -> int:
        """Puts the engine to sleep. Returns the number of bytes copied to the file. If it raises, the engine is awake.

        Raises: SleepNotSupported; OSError: the disk is full. ValueError: the engine has requests.
        """
        if self._file is not None:
            return 0
        self.check()
        if self._engine.has_work:
            raise ValueError("an engine with requests cannot sleep")
        self._engine.scheduler.pool.forget_prefixes()
        folder = self._folder or cache_folder("asleep")
        folder.mkdir(parents=True, exist_ok=True)
        file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (it stays open until the engine wakes)
        try:
            cache = self._engine.cache
            # Gives back only the pages of the tensors themselves, because their storages may also hold small weights.
            # The pages read as zeros from now on.
            _give_back(
                _whole_pages(_extent(values) for values in (*cache.keys, *cache.values) if values.is_contiguous())
            )
            held = _tensors()
            ranges = _whole_pages(_storages(held))
            saved = [block for whole in ranges for block in _write(file.fileno(), whole)]
        except BaseException:
            file.close()
            raise
        self._file, self._saved, self._held = file, saved, held
        try:
            _give_back(ranges)
        except OSError:
            self.wake()
            raise
        trim_heap()
        return sum(block.end - block.start for block in saved)

    def wake(self) -> None:
        """Restores the memory from the file; does nothing if the engine is awake.

        Raises: OSError: the file could not be read; the engine stays asleep, and `wake` may be called again.
        """
        if self._file is None:
            return
        offset = 0
        for block in self._saved:
            _read(self._file.fileno(), block, offset)
            offset += block.end - block.start
        self._file.close()
        self._file, self._saved, self._held = None, [], []


def _tensors() -> list[Tensor]:
    """Returns all tensors of the process, except those of special classes, which may have no memory of their own."""
    return [thing for thing in gc.get_objects() if type(thing) in (Tensor, torch.nn.Parameter)]


def _extent(values: Tensor) -> Range:
    return Range(values.data_ptr(), values.data_ptr() + values.nbytes)


def _storages(tensors: Iterable[Tensor]) -> Iterator[Range]:
    for tensor in tensors:
        if tensor.device.type == "cpu" and tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            if storage.nbytes() >= _SMALLEST:
                yield Range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _whole_pages(ranges: Iterable[Range]) -> list[Range]:
    """Returns the whole pages in the ranges that are private, writable and not mapped from a file, ascending."""
    merged: list[Range] = []
    for start, end in sorted(set(ranges)):  # two storages overlap if one was made from the other's memory
        first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
        if merged and first < merged[-1].end:
            merged[-1] = Range(merged[-1].start, max(last, merged[-1].end))
        elif first < last:
            merged.append(Range(first, last))
    return _without_files(merged)


def _without_files(ranges: list[Range]) -> list[Range]:
    """Returns the ranges' parts that are private, writable and anonymous; others may be shared or read-only."""
    private: list[Range] = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _, _, inode, *_ = line.split()
        if permissions.startswith("rw") and permissions.endswith("p") and inode == "0":
            start, end = (int(address, 16) for address in addresses.split("-"))
            private.append(Range(start, end))
    parts: list[Range] = []
    starts = [mapping.start for mapping in private]
    for start, end in ranges:
        for mapping in private[max(0, bisect_right(starts, start) - 1) :]:
            if mapping.start >= end:
                break
            part = Range(max(start, mapping.start), min(end, mapping.end))
            if part.start < part.end:
                parts.append(part)
    return parts


def _give_back(ranges: Iterable[Range]) -> None:
    """Gives the pages back to the system. They read as zeros afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    for start, end in ranges:
        if libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_DONTNEED):
            number = ctypes.get_errno()
            if number != 22:  # EINVAL: the pages are locked in memory, so they keep their contents
                raise OSError(number, os.strerror(number))


def _write(descriptor: int, whole: Range) -> list[Range]:
    """Appends those blocks of `whole` to the file that are not all zeros, and returns these blocks. Raises: OSError."""
    written: list[Range] = []
    for start in range(whole.start, whole.end, _BLOCK):
        block = Range(start, min(start + _BLOCK, whole.end))
        view = _view(block)
        if not torch.frombuffer(view, dtype=torch.int64).any():
            continue
        while view:
            view = view[os.write(descriptor, view) :]
        written.append(block)
    return written


def _read(descriptor: int, block: Range, offset: int) -> None:
    view = _view(block)
    while view:
        num_read = os.preadv(descriptor, [view], offset)
        if not num_read:
            raise OSError("the file of a sleeping engine is too short")
        view, offset = view[num_read:], offset + num_read


def _view(block: Range) -> memoryview:
    return memoryview((ctypes.c_char * (block.end - block.start)).from_address(block.start)).cast("B")
