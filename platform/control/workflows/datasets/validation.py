"""Checks a whole file in one pass and bounded memory, and lists each bad line with its number, byte and code.

bytes -> read_text_lines -> parse_object -> read_example -> unique custom_id -> `on_example`
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from control.workflows.datasets.formats import Example, Format, format_of, read_example
from control.workflows.datasets.position import byte_column
from control.workflows.prompt_files.lines import MAX_LINE_BYTES, Line, Readable
from control.workflows.prompt_files.rows import RowError, content_of, parse_object
from control.workflows.prompt_files.validation import MAX_ERRORS, MAX_ROWS, read_text_lines

SYNTAX_CODES = frozenset({"invalid_json_line", "invalid_utf8", "line_too_long"})


@dataclass(slots=True)
class Findings:
    format: Format | None = None
    num_rows: int = 0
    num_answers: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)  # the first MAX_ERRORS, in the order of lines
    num_errors: int = 0  # also errors that are not in the list
    errors_by_code: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Args: values: a result of `as_json`."""
        form = values["format"]
        codes = Counter(values["errors_by_code"])
        return cls(**{**values, "format": None if form is None else Format(form), "errors_by_code": codes})

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def examine(
    source: Readable,
    *,
    on_example: Callable[[Example, Line], object] = lambda example, line: None,
    check: Callable[[Example], object] = lambda example: None,
    max_rows: int = MAX_ROWS,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Findings:
    """Checks the rows up to the end of the file or to `max_rows`, and calls `on_example` with every valid row.

    Args: check: raises RowError if the row lacks what the caller needs.
    """
    findings = Findings()
    line_of_id: dict[str, int] = {}

    def fail(number: int | None, error: RowError, content: bytes | None = None) -> None:
        findings.num_errors += 1
        findings.errors_by_code[error.code] += 1
        if len(findings.errors) < MAX_ERRORS:
            findings.errors.append(_error(number, error, content))

    for line in read_text_lines(source, max_rows=max_rows, max_line_bytes=max_line_bytes, fail=fail):
        if findings.num_rows == max_rows:
            fail(line.number, RowError("too_many_rows", f"A dataset can have at most {max_rows:,} rows."))
            break
        findings.num_rows += 1
        try:
            example = _read(line, findings, max_line_bytes)
            _check_unique(example, line.number, line_of_id)
            check(example)
        except RowError as error:
            fail(line.number, error, line.content)
            continue
        findings.num_answers += example.answer is not None
        on_example(example, line)
    if not findings.num_rows and not findings.num_errors:
        fail(None, RowError("empty_file", "The file has no rows."))
    return findings


def _read(line: Line, findings: Findings, max_line_bytes: int) -> Example:
    row = parse_object(content_of(line, max_line_bytes))
    if findings.format is None:
        findings.format = format_of(row)
    elif findings.format not in _possible_formats(row):
        raise RowError("mixed_formats", f"This row must have the format of the rows before it: {findings.format.value}")
    return read_example(row, findings.format)


def _possible_formats(row: dict[str, Any]) -> set[Format]:
    members = {"body": Format.BATCH, "messages": Format.CHAT, "prompt": Format.PROMPT}
    # A row with none of these keys is allowed here, because `read_example` reports the missing key.
    return {form for member, form in members.items() if member in row} or set(Format)


def _check_unique(example: Example, number: int, line_of_id: dict[str, int]) -> None:
    if example.custom_id is None:
        return
    first = line_of_id.setdefault(example.custom_id, number)
    if first != number:
        message = f"custom_id {example.custom_id[:80]!a} is already used on line {first}"
        raise RowError("duplicate_custom_id", message, "custom_id")


def _error(number: int | None, error: RowError, content: bytes | None) -> dict[str, Any]:
    column = error.column
    if column is None and number is not None:
        column = 1 if content is None or error.code in SYNTAX_CODES else byte_column(content, error.param)
    return {
        "code": error.code,
        "line": number,
        "column": column,
        "message": error.message,
        "param": error.param,
    }
