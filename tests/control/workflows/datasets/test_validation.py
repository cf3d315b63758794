"""Validation reports each hostile row with its line number, and continues with the next row."""

import json
import random
import time
import tracemalloc
import zlib
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.workflows.datasets.formats import Example, Format
from control.workflows.datasets.position import byte_column
from control.workflows.datasets.validation import Findings, examine
from control.workflows.prompt_files.validation import MAX_ERRORS, MAX_ROWS
from tests.control.workflows.datasets.hostile import GOOD, ROWS, chat


def check(content: bytes, **limits: Any) -> tuple[Findings, list[Example]]:
    examples: list[Example] = []
    findings = examine(BytesIO(content), on_example=lambda example, line: examples.append(example), **limits)
    return findings, examples


def lines(rows: Iterable[bytes]) -> bytes:
    return b"".join(row + b"\n" for row in rows)


class RepeatedPiece:
    """A stream of `head` and `times` pieces, which are never all in memory. `num_read` counts the bytes read."""

    def __init__(self, piece: bytes, times: int, head: bytes = b"") -> None:
        self._block = piece * max(1, (1 << 16) // len(piece))
        self._head = head
        self._num_left = len(piece) * times
        self.num_read = 0

    def read(self, size: int, /) -> bytes:
        chunk, self._head = self._head[:size], self._head[size:]
        if not chunk:
            chunk = self._block[: min(size, self._num_left)]
            self._num_left -= len(chunk)
        self.num_read += len(chunk)
        return chunk


@pytest.mark.parametrize(
    ("rows", "file_format", "num_answers"),
    [
        ([GOOD, chat(), chat(custom_id="a"), chat(tools=[])], Format.CHAT, 1),
        ([b'{"prompt": "2+2?"}', b'{"prompt": "2+2?", "completion": "4"}'], Format.PROMPT, 1),
        ([b'{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "x"}]}}'], Format.BATCH, 0),
        ([b'{"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "x"}}'], Format.BATCH, 0),
    ],
)
def test_valid_files_of_every_format_are_accepted(rows: list[bytes], file_format: Format, num_answers: int) -> None:
    findings, examples = check(b"\xef\xbb\xbf" + lines([*rows, b"", b"  "]))  # a byte order mark, and blank lines

    assert (findings.format, findings.num_rows, findings.num_answers, findings.errors) == (
        file_format,
        len(rows),
        num_answers,
        [],
    )
    assert len(examples) == len(rows)


def test_the_last_answer_is_separated_from_its_prompt() -> None:
    turns = [("system", "be brief"), ("user", "2+2?"), ("assistant", "4"), ("user", "sure?"), ("assistant", "yes")]
    _, (example,) = check(chat([{"role": role, "content": content} for role, content in turns]))

    assert example.answer == "yes"
    assert example.messages is not None
    assert [message["content"] for message in example.messages] == ["be brief", "2+2?", "4", "sure?"]


@pytest.mark.parametrize(("row", "code"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_hostile_row_gets_its_error_and_the_rows_before_and_after_it_get_none(row: bytes, code: str) -> None:
    findings, examples = check(lines([GOOD, row, GOOD]))

    assert [(error["line"], error["code"]) for error in findings.errors] == [(2, code)]
    assert 1 <= findings.errors[0]["column"] <= len(row) + 1
    assert len(examples) == 2
    json.dumps(findings.errors).encode()  # the errors can be stored, whatever bytes the row has


def test_each_of_ten_thousand_hostile_rows_is_reported_in_little_time_and_memory() -> None:
    small = [row for row in ROWS if len(row[1]) < 20_000]  # ten thousand larger rows would be gigabytes
    chosen = random.Random(4).choices(small, k=10_000)
    content = lines([GOOD, *(row for _, row, _ in chosen)])
    began = time.process_time()
    examine(BytesIO(content), on_example=lambda example, line: None)
    seconds = time.process_time() - began
    tracemalloc.start()
    try:
        findings = examine(BytesIO(content), on_example=lambda example, line: None)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    expected = [(number, code) for number, (_, _, code) in enumerate(chosen, start=2)]
    assert [(error["line"], error["code"]) for error in findings.errors] == expected[:MAX_ERRORS]
    assert findings.num_errors == sum(findings.errors_by_code.values()) == 10_000
    assert peak_bytes < 64 << 20
    assert len(content) / seconds >= 5e6, "bytes per second on one core"


@given(st.lists(st.tuples(st.integers(0, len(GOOD)), st.binary(max_size=3), st.integers(0, 3)), max_size=4))
def test_a_row_with_random_changes_is_accepted_or_refused_with_a_position_in_that_row(
    changes: list[tuple[int, bytes, int]],
) -> None:
    row = bytearray(GOOD)
    for position, inserted, num_deleted in changes:
        row[position : position + num_deleted] = inserted.replace(b"\n", b" ")

    findings, examples = check(lines([GOOD, bytes(row), GOOD]))

    assert len(examples) + findings.num_errors == findings.num_rows
    assert findings.num_rows == 2 + bool(row.strip())
    for error in findings.errors:
        assert error["line"] == 2
        assert 1 <= error["column"] <= len(row) + 1


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["custom_id", "messages", "prompt", "body", "url", "completion"]), JSON_VALUES))
def test_any_json_object_is_accepted_or_refused(row: dict[str, Any]) -> None:
    findings, examples = check(json.dumps(row).encode())

    assert len(examples) + findings.num_errors == findings.num_rows == 1
    json.dumps(findings.errors).encode()


@pytest.mark.parametrize(
    ("source", "code"),
    [
        (RepeatedPiece(b"x", 1 << 30), "line_too_long"),
        (RepeatedPiece(b"[", 1 << 24), "line_too_long"),
        (RepeatedPiece(b"\0" * 1024, 1 << 20, head=zlib.compress(b"x" * 1024, wbits=31)), "compressed_file"),
        (RepeatedPiece(b"{}\n", 10_000_000), "too_many_rows"),
        (RepeatedPiece(b"\n", 10_000_000), "too_many_lines"),
    ],
    ids=["one line of a gigabyte", "brackets without end", "gzip", "ten million tiny lines", "ten million blank lines"],
)
def test_a_huge_file_is_refused_within_seconds_with_a_limited_number_of_errors(
    source: RepeatedPiece, code: str
) -> None:
    began = time.process_time()
    findings = examine(source, on_example=lambda example, line: None)

    assert time.process_time() - began <= 5
    assert findings.errors_by_code[code] == 1
    assert len(findings.errors) <= MAX_ERRORS
    if code != "line_too_long":
        assert source.num_read < 4 * MAX_ROWS, "reading must stop at the limit; the rows have at most 3 bytes"


def test_a_row_with_a_million_keys_is_refused_with_one_error() -> None:
    row = b'{"messages": [], %s}' % b", ".join(b'"%d": 0' % number for number in range(1_000_000))

    findings, _ = check(lines([row, GOOD]), max_line_bytes=1 << 25)

    assert [(error["line"], error["code"]) for error in findings.errors] == [(1, "invalid_body")]


def test_the_error_for_a_repeated_id_names_both_lines() -> None:
    findings, _ = check(lines([chat(custom_id="a"), b"", chat(custom_id="b"), chat(custom_id="a")]))

    (error,) = findings.errors
    assert (error["line"], error["code"], error["param"]) == (4, "duplicate_custom_id", "custom_id")
    assert "line 1" in error["message"]
    assert chat(custom_id="a")[error["column"] - 1 :] == b'"a"}'


@pytest.mark.parametrize(
    ("param", "text_at_column"),
    [
        (None, "{"),
        ("body", '{"messages"'),
        ("body.messages[1].role", '"röot"'),
        ("body.messages[1].content", '{"role": "röot"'),
        ("body.messages[7]", "[ {"),
        ("body.nothing", '{"messages"'),
        ("é", "1}"),
    ],
)
def test_the_column_of_an_error_points_to_the_field_or_to_the_object_that_lacks_it(
    param: str | None, text_at_column: str
) -> None:
    line = '{ "custom_id":"\\"é" , "body":{"messages" : [ {"a": [1, {}]}, {"role": "röot"}]}, "é": 1}'.encode()

    assert line[byte_column(line, param) - 1 :].startswith(text_at_column.encode())
