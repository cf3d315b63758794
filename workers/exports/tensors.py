"""Reads and writes safetensors files. The bytes of tensors are copied from file to file in pieces, and not interpreted.

A file has three parts: 8 bytes with the length of the header; the header, which is JSON and maps each tensor's name to
its dtype, shape and data_offsets; and the bytes of all tensors, without gaps.

Source: https://github.com/huggingface/safetensors, "Format".
"""

import json
import math
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workers.exports.errors import invalid

MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 20_000
_COPY_BYTES = 1 << 20
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor. Its bytes are in `data` or, if `path` is given, in the spans of that file, which are concatenated."""

    dtype: str
    shape: tuple[int, ...]
    path: Path | None = None
    spans: tuple[tuple[int | None, int], ...] = ()  # (offset, number of bytes); offset None: this many zero bytes
    data: bytes = b""

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def chunks(self) -> Iterator[bytes]:
        if self.path is None:
            yield self.data
            return
        with self.path.open("rb") as file:
            for first, count in self.spans:
                file.seek(first or 0)
                while count:
                    size = min(count, _COPY_BYTES)
                    chunk = bytes(size) if first is None else file.read(size)
                    if not chunk:
                        raise invalid(f"{self.path.name} ends before the end of a tensor")
                    count -= len(chunk)
                    yield chunk

    def only_rows(self, indices: Sequence[int]) -> "Stored":
        """Returns a copy in which all rows except `indices` are zero. `indices` must be ascending."""
        begin, row_bytes = self._begin(), self.num_bytes // self.shape[0]
        spans: list[tuple[int | None, int]] = []
        next_row = 0  # the first row that no span covers yet
        for index in indices:
            spans += [(None, (index - next_row) * row_bytes), (begin + index * row_bytes, row_bytes)]
            next_row = index + 1
        spans.append((None, (self.shape[0] - next_row) * row_bytes))
        return replace(self, spans=tuple(spans))

    def nonzero_rows(self) -> list[int]:
        """Returns the indices of the rows that have a byte other than zero."""
        begin, row_bytes = self._begin(), self.num_bytes // self.shape[0]
        assert self.path is not None
        with self.path.open("rb") as file:
            file.seek(begin)
            return [row for row in range(self.shape[0]) if file.read(row_bytes).count(0) < row_bytes]

    def _begin(self) -> int:
        """Returns the tensor's offset in the file. The tensor must have exactly one span."""
        ((begin, _),) = self.spans
        assert begin is not None
        return begin

    def integers(self) -> list[int]:
        """Returns the values of a tensor [N] int64. Raises: ExchangeError."""
        if self.dtype != "I64" or len(self.shape) != 1:
            raise invalid(f"the tensor must be one-dimensional int64, got {self.dtype} {list(self.shape)}")
        values = array("q", b"".join(self.chunks()))
        if sys.byteorder == "big":
            values.byteswap()
        return values.tolist()


def integers(values: Sequence[int]) -> Stored:
    """Returns a tensor [N] int64."""
    data = array("q", values)
    if sys.byteorder == "big":
        data.byteswap()
    return Stored(dtype="I64", shape=(len(values),), data=data.tobytes())


def read_tensors(path: Path) -> dict[str, Stored]:
    """Raises: ExchangeError: the header is invalid, or the tensors have gaps or overlaps or do not fill the file."""
    try:
        return _read(path)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise invalid(f"{path.name} is not a safetensors file: {error}") from error


def _read(path: Path) -> dict[str, Stored]:
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, path.stat().st_size - 8):
            raise ValueError(f"the header cannot have {header_bytes:,} bytes")
        header = json.loads(file.read(header_bytes))
    header.pop("__metadata__", None)
    if not 1 <= len(header) <= MAX_TENSORS:
        raise ValueError(f"a file holds 1 to {MAX_TENSORS:,} tensors, got {len(header):,}")
    first = 8 + header_bytes
    tensors, ranges = {}, []
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        if not all(type(n) is int and n >= 0 for n in (begin, end, *shape)):
            raise ValueError(f"offsets and shape of {name:.80} must be numbers of 0 or more")
        if entry["dtype"] not in ITEM_BYTES:
            raise ValueError(f"{name:.80} has dtype {entry['dtype']!r:.20}, not one of {', '.join(ITEM_BYTES)}")
        stored = Stored(dtype=entry["dtype"], shape=shape, path=path, spans=((first + begin, end - begin),))
        if end - begin != stored.num_bytes:
            raise ValueError(f"{name:.80} {list(shape)} takes {stored.num_bytes:,} bytes, got {end - begin:,}")
        tensors[name] = stored
        ranges.append((begin, end))
    position = 0
    for begin, end in sorted(ranges):
        if begin != position:
            raise ValueError(f"a tensor begins at byte {begin} where the one before ends at {position}")
        position = end
    if first + position != path.stat().st_size:
        raise ValueError(f"the tensors end at byte {first + position:,} of {path.stat().st_size:,}")
    return tensors


def write_tensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, tensor in tensors.items():
        end = position + tensor.num_bytes
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the tensors for readers that map the file into memory
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            for chunk in tensor.chunks():
                file.write(chunk)
