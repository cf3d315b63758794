"""Reads numbered lines of limited length from a byte stream. A line that is too long is read but not stored."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

MAX_LINE_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Line:
    number: int  # from 1
    content: bytes | None  # without the line feed; None: the line is longer than allowed
    size_bytes: int  # without the line feed


def read_lines(source: Readable, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Lines end with a line feed. Text after the last line feed is a line too, unless it is empty."""
    number, begun, size = 1, bytearray(), 0  # `begun`: the bytes so far of a line that goes on in the next chunk
    while chunk := source.read(CHUNK_BYTES):
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            yield _line(number, begun, size, chunk[start:end], max_line_bytes)
            number, begun, size, start = number + 1, bytearray(), 0, end + 1
        rest = chunk[start:]
        size += len(rest)
        if size <= max_line_bytes:
            begun += rest
        else:
            begun.clear()  # the line is too long: from here on only its length is counted
    if size:
        yield _line(number, begun, size, b"", max_line_bytes)


def _line(number: int, begun: bytearray, begun_size: int, tail: bytes, max_line_bytes: int) -> Line:
    size = begun_size + len(tail)
    return Line(number, bytes(begun) + tail if size <= max_line_bytes else None, size)


_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class Peeked:
    """A stream whose first bytes are in `head`. The first `read` returns `head` too."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self.head = source.read(CHUNK_BYTES)
        self._is_fresh = True

    def read(self, size: int, /) -> bytes:
        """`size` must be at least CHUNK_BYTES, the length of `head`; `read_lines` uses CHUNK_BYTES."""
        if self._is_fresh:
            self._is_fresh = False
            return self.head
        return self._source.read(size)


def compression_of(head: bytes) -> str | None:
    """The compression format of a file that begins with `head`; None if the file may be text."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
