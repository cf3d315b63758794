"""Reads numbered lines of limited length from a byte stream. A line that is too long is read but not stored."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

MAX_LINE_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 16


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Line:
    number: int  # from 1
    content: bytes | None  # without the line feed; None: the line is longer than allowed
    size_bytes: int  # without the line feed


def read_lines(source: Readable, *, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Line]:
    """Yields the lines, which end with a line feed. Text after the last line feed is a line too, unless it is empty."""
    # `partial` is the start of a line that continues in the next chunk, and `size` is the line's length so far.
    number, partial, size = 1, bytearray(), 0
    while chunk := source.read(CHUNK_BYTES):
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            yield _line(number, partial, size, chunk[start:end], max_line_bytes)
            number, partial, size, start = number + 1, bytearray(), 0, end + 1
        rest = chunk[start:]
        size += len(rest)
        if size <= max_line_bytes:
            partial += rest
        else:
            partial.clear()  # the line is too long: from here on only its length is counted
    if size:
        yield _line(number, partial, size, b"", max_line_bytes)


def without_mark(line: Line) -> Line:
    """Returns the line without a byte order mark, which only the first line can have."""
    if line.number != 1 or line.content is None:
        return line
    return Line(1, line.content.removeprefix(_BYTE_ORDER_MARK), line.size_bytes)


def _line(number: int, partial: bytearray, partial_size: int, tail: bytes, max_line_bytes: int) -> Line:
    size = partial_size + len(tail)
    return Line(number, bytes(partial) + tail if size <= max_line_bytes else None, size)


# The first bytes of compressed files.
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class Peeked:
    """A stream whose first bytes can be inspected in `head` before they are read. The first `read` returns `head`."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self.head = source.read(CHUNK_BYTES)
        self._is_head_unread = True

    def read(self, size: int, /) -> bytes:
        """Args: size: at least CHUNK_BYTES, because the first call returns the whole `head`."""
        if self._is_head_unread:
            self._is_head_unread = False
            return self.head
        return self._source.read(size)


def compression_of(head: bytes) -> str | None:
    """The compression format of a file that begins with `head`; None if the file may be text."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)
