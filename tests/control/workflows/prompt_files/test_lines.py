"""A file is read line by line, and a line over the limit is never held in memory."""

import io
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from control.workflows.prompt_files.lines import read_lines


class SlowStream:
    """A stream that returns at most `size` bytes per read."""

    def __init__(self, content: bytes, size: int) -> None:
        self._stream = io.BytesIO(content)
        self._size = size

    def read(self, size: int, /) -> bytes:
        return self._stream.read(min(size, self._size))


class LongLine:
    """A stream of `num_bytes` bytes without a newline. Each read creates the bytes that it returns."""

    def __init__(self, num_bytes: int) -> None:
        self._num_left = num_bytes

    def read(self, size: int, /) -> bytes:
        size = min(size, self._num_left)
        self._num_left -= size
        return b"x" * size


@given(st.lists(st.sampled_from([b"", b"a", b"bc", b"def", b"ghijk"])), st.booleans(), st.integers(1, 9))
def test_read_lines_agrees_with_bytes_split_for_any_read_size(
    lines: list[bytes], ends_with_newline: bool, size: int
) -> None:
    content = b"\n".join(lines) + (b"\n" if ends_with_newline else b"")
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()

    result = list(read_lines(SlowStream(content, size), max_line_bytes=3))

    assert [line.number for line in result] == list(range(1, len(expected) + 1))
    assert [line.content for line in result] == [line if len(line) <= 3 else None for line in expected]
    assert [line.size_bytes for line in result] == [len(line) for line in expected]


def test_a_line_of_300_mb_takes_no_more_memory_than_a_short_one() -> None:
    tracemalloc.start()
    try:
        (line,) = read_lines(LongLine(300_000_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (line.content, line.size_bytes) == (None, 300_000_000)
    assert peak_bytes < 4_000_000  # the limit of a line is 1 MiB, and a line may be in memory twice
