"""Validation reports the errors of a prompt file by line and writes its valid rows in normal form."""

import io
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.workflows.prompt_files.validation import MAX_ERRORS, ModelChoice, Report, validate
from tests.control.factories import chat_row

CHAT = "/v1/chat/completions"
ONE_MODEL = ModelChoice(visible=frozenset({"tiny"}), default="tiny", is_fixed=False)
TWO_MODELS = ModelChoice(visible=frozenset({"tiny", "large"}), default=None, is_fixed=False)
FIXED = ModelChoice(visible=frozenset({"tiny", "large"}), default="large", is_fixed=True)


def check(
    rows: bytes | list[dict[str, Any] | str], models: ModelChoice = ONE_MODEL, **limits: int
) -> tuple[Report, list[dict[str, Any]]]:
    if not isinstance(rows, bytes):
        rows = "".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows).encode()
    written = bytearray()
    report = validate(io.BytesIO(rows), endpoint=CHAT, models=models, write=written.extend, **limits)
    return report, [json.loads(line) for line in written.splitlines()]


def codes(report: Report) -> list[tuple[int | None, str]]:
    return [(error["line"], error["code"]) for error in report.errors]


def test_valid_rows_are_written_in_order_with_their_model() -> None:
    report, written = check([chat_row("b"), chat_row("a", model="tiny")])

    assert (report.num_rows, report.num_errors, report.model) == (2, 0, "tiny")
    assert [row["custom_id"] for row in written] == ["b", "a"]
    assert [row["body"]["model"] for row in written] == ["tiny", "tiny"]


def test_every_bad_line_is_listed_with_its_error() -> None:
    report, written = check(
        [
            chat_row("a"),
            "{",
            {**chat_row("b"), "url": "/v1/embeddings"},
            "",
            chat_row("a"),
            {**chat_row("c"), "method": "PUT"},
            chat_row("d", model="unknown"),
            {"body": {}},
            chat_row("e"),
        ]
    )

    assert codes(report) == [
        (2, "invalid_json_line"),
        (3, "url_mismatch"),
        (5, "duplicate_custom_id"),
        (6, "invalid_method"),
        (7, "model_not_found"),
        (8, "missing_custom_id"),
    ]
    assert [row["custom_id"] for row in written] == ["a"]


def test_the_error_for_a_duplicate_names_both_lines() -> None:
    report, _ = check([chat_row("a"), chat_row("b"), {**chat_row(), "custom_id": "a"}])

    (error,) = report.errors
    assert error["line"] == 3
    assert "line 3" in error["message"]
    assert "line 1" in error["message"]
    assert error["param"] == "custom_id"


def test_a_number_and_its_string_are_the_same_custom_id() -> None:
    report, _ = check([{**chat_row(), "custom_id": 1}, chat_row("1")])

    assert codes(report) == [(2, "duplicate_custom_id")]


def test_numbers_as_custom_id_cause_one_warning() -> None:
    report, written = check([chat_row("a"), *({**chat_row(), "custom_id": n} for n in range(3))])

    assert [row["custom_id"] for row in written] == ["a", "0", "1", "2"]
    (warning,) = report.warnings
    assert (warning["code"], warning["line"]) == ("custom_id_coerced", 2)
    assert "3 rows" in warning["message"]


@pytest.mark.parametrize(
    ("models", "model_names", "expected"),
    [
        (ONE_MODEL, ["", ""], []),
        (ONE_MODEL, ["other"], [(1, "model_not_found")]),
        (TWO_MODELS, [""], [(1, "missing_model")]),
        (TWO_MODELS, ["tiny", "tiny"], []),
        (TWO_MODELS, ["tiny", "large", "tiny"], [(2, "model_mismatch")]),
        (FIXED, ["", "large"], []),
        (FIXED, ["tiny"], [(1, "model_mismatch")]),
        (FIXED, ["other"], [(1, "model_not_found")]),
    ],
)
def test_all_rows_must_name_the_same_existing_model(
    models: ModelChoice, model_names: list[str], expected: list[tuple[int, str]]
) -> None:
    report, _ = check([chat_row(str(i), model=name) for i, name in enumerate(model_names)], models)

    assert codes(report) == expected


@pytest.mark.parametrize("content", [b"", b"\n\n", b" \t\r\n", b"\xef\xbb\xbf"])
def test_a_file_without_rows_is_refused_as_empty(content: bytes) -> None:
    report, _ = check(content)

    assert codes(report) == [(None, "empty_file")]


def test_a_byte_order_mark_and_windows_line_ends_are_accepted() -> None:
    rows = b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(chat_row(i)).encode() for i in "ab")

    report, written = check(rows)

    assert report.num_errors == 0
    assert [row["custom_id"] for row in written] == ["a", "b"]


def test_reading_stops_at_the_first_row_over_the_limit() -> None:
    assert check([chat_row(str(i)) for i in range(3)], max_rows=3)[0].num_errors == 0

    report, _ = check([*(chat_row(str(i)) for i in range(4)), "{"], max_rows=3)

    assert codes(report) == [(4, "too_many_tasks")]


def test_a_line_may_be_exactly_as_long_as_the_limit() -> None:
    row = json.dumps(chat_row("a"))

    assert check([row], max_line_bytes=len(row))[0].num_errors == 0
    assert codes(check([row], max_line_bytes=len(row) - 1)[0]) == [(1, "line_too_long")]


def test_errors_beyond_the_limit_are_counted_but_not_listed() -> None:
    report, _ = check(["{"] * (MAX_ERRORS + 5))

    assert len(report.errors) == MAX_ERRORS
    assert report.num_errors == MAX_ERRORS + 5


def test_a_file_of_many_rows_takes_little_memory() -> None:
    class Rows:
        """A stream of 4,000 rows of 20 kB (80 MB), of which only one row is in memory at a time."""

        def __init__(self) -> None:
            self._lines = (json.dumps(chat_row(str(i), content="x" * 20_000)).encode() + b"\n" for i in range(4_000))

        def read(self, size: int, /) -> bytes:
            return next(self._lines, b"")

    tracemalloc.start()
    try:
        report = validate(Rows(), endpoint=CHAT, models=ONE_MODEL, write=lambda line: None)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert (report.num_rows, report.num_errors) == (4_000, 0)
    assert peak_bytes < 4_000_000  # enough for 4,000 ids and one or two lines, but not for all lines


GOOD, BAD = "good", "bad"
KINDS = st.lists(st.sampled_from([GOOD, BAD, "blank", "duplicate"]), max_size=30)


@given(KINDS)
def test_every_line_is_either_a_row_or_an_error_or_blank(kinds: list[str]) -> None:
    lines: list[dict[str, Any] | str] = []
    expected: list[tuple[int | None, str]] = []
    num_good = 0
    for number, kind in enumerate(kinds, start=1):
        if kind == "duplicate" and not num_good:
            kind = GOOD
        match kind:
            case "good":
                lines.append(chat_row(f"row-{num_good}"))
                num_good += 1
            case "duplicate":
                lines.append(chat_row("row-0"))
                expected.append((number, "duplicate_custom_id"))
            case "bad":
                lines.append("not json")
                expected.append((number, "invalid_json_line"))
            case _:
                lines.append("  ")

    report, written = check(lines)

    if not num_good and not expected:
        expected = [(None, "empty_file")]
    assert codes(report) == expected
    assert report.num_rows == num_good + sum(line is not None for line, _ in expected)
    if not expected:
        assert [row["custom_id"] for row in written] == [f"row-{i}" for i in range(num_good)]
