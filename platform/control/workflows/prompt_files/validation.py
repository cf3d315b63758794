"""Checks a whole batch input file in one pass and bounded memory, and lists the bad lines.

This module does not use the database: callers pass the names of the models and receive normalised lines in `write`.

    bytes -> lines.read_lines -> rows.parse_row -> unique custom_id -> one model -> write(normalised line)
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from control.workflows.prompt_files.lines import (
    MAX_LINE_BYTES,
    Line,
    Peeked,
    Readable,
    compression_of,
    read_lines,
    without_mark,
)
from control.workflows.prompt_files.rows import Row, RowError, content_of, normalised_line, parse_row

MAX_ROWS = 50_000
MAX_ERRORS = 1_000
_SPARE_LINES = 1_000  # a file may have this many blank lines, and one more for each row


@dataclass(slots=True)
class Report:
    """Result of the check. `errors` and `warnings` have OpenAI's format: code, line, message, param."""

    num_rows: int = 0
    model: str | None = None  # the model of all rows; None: no row was valid
    errors: list[dict[str, Any]] = field(default_factory=list)  # the first MAX_ERRORS, in the order of lines
    num_errors: int = 0  # also errors that are not in the list
    warnings: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """The models that the rows may name."""

    visible: Collection[str]
    default: str | None  # the model of rows whose `body.model` is ""; None: such rows are errors
    is_fixed: bool  # the batch was created for `default`: no row may name another model


def validate(
    source: Readable,
    *,
    endpoint: str,
    models: ModelChoice,
    write: Callable[[bytes], object],
    max_rows: int = MAX_ROWS,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Report:
    """Checks the rows up to the end of the file or to `max_rows`. Calls `write` with each row until the first error."""
    check = _FileCheck(endpoint, models)
    report = check.report
    for line in read_text_lines(source, max_rows=max_rows, max_line_bytes=max_line_bytes, fail=check.fail):
        report.num_rows += 1
        if report.num_rows > max_rows:
            check.fail(line.number, RowError("too_many_tasks", f"A batch can have at most {max_rows:,} rows."))
            break
        try:
            row, model = check.read_row(line, max_line_bytes)
        except RowError as error:
            check.fail(line.number, error)
            continue
        if not report.num_errors:
            write(normalised_line(row, url=endpoint, model=model))
    if not report.num_rows and not report.num_errors:
        check.fail(None, RowError("empty_file", "The file has no rows."))
    report.model = check.model
    report.warnings = check.warnings()
    return report


def read_text_lines(
    source: Readable, *, max_rows: int, max_line_bytes: int, fail: Callable[[int | None, RowError], None]
) -> Iterator[Line]:
    """Yields the lines that are not blank, without a byte order mark.

    Calls `fail` and ends early if the file is compressed or has too many lines.
    """
    peeked = Peeked(source)
    if compression := compression_of(peeked.head):
        message = f"The file is compressed with {compression}: upload it uncompressed."
        fail(1, RowError("compressed_file", message))
        return
    for line in read_lines(peeked, max_line_bytes=max_line_bytes):
        line = without_mark(line)
        if line.number > 2 * max_rows + _SPARE_LINES:
            fail(line.number, RowError("too_many_lines", f"The file has more than {line.number - 1:,} lines."))
            return
        if line.content is None or line.content.strip():
            yield line


class _FileCheck:
    """Checks the lines of one file, and stores the ids and the model of earlier lines to compare later lines with."""

    def __init__(self, endpoint: str, models: ModelChoice) -> None:
        self.report = Report()
        self.model = models.default if models.is_fixed else None
        self._model_line: int | None = None  # the first line that named the model; None: the batch named the model
        self._endpoint = endpoint
        self._models = models
        self._line_of_id: dict[str, int] = {}
        self._num_coerced = 0
        self._first_coerced_line: int | None = None

    def fail(self, line: int | None, error: RowError) -> None:
        self.report.num_errors += 1
        if len(self.report.errors) < MAX_ERRORS:
            self.report.errors.append(
                {"code": error.code, "line": line, "message": error.message, "param": error.param}
            )

    def read_row(self, line: Line, max_line_bytes: int) -> tuple[Row, str]:
        """Checks a line against the earlier lines, too. Returns the row and its model. Raises: RowError."""
        row = parse_row(content_of(line, max_line_bytes), endpoint=self._endpoint)
        first = self._line_of_id.setdefault(row.custom_id, line.number)
        if first != line.number:
            raise RowError(
                "duplicate_custom_id",
                f"custom_id {row.custom_id!a} on line {line.number} is already used on line {first}",
                "custom_id",
            )
        if row.is_id_coerced:
            self._num_coerced += 1
            self._first_coerced_line = self._first_coerced_line or line.number
        return row, self._common_model(row.model, line.number)

    def _common_model(self, row_model: str, number: int) -> str:
        """Returns the model of the row on line `number`.

        Raises: RowError: the model does not exist, or differs from the model of the earlier rows.
        """
        model = row_model or self._models.default
        if model is None:
            message = "body.model is empty, and the batch has no model: create the batch with `model`"
            raise RowError("missing_model", message, "body.model")
        if model not in self._models.visible:
            raise RowError("model_not_found", f"The model {_shown(model)} does not exist", "body.model")
        if self.model is None:
            self.model, self._model_line = model, number
        if model != self.model:
            origin = "the batch" if self._model_line is None else f"line {self._model_line}"
            message = f"body.model must be {_shown(self.model)}, the model of {origin}, got {_shown(model)}"
            raise RowError("model_mismatch", message, "body.model")
        return model

    def warnings(self) -> list[dict[str, Any]]:
        if not self._num_coerced:
            return []
        message = f"custom_id was a number in {self._num_coerced:,} rows and is returned as a string"
        return [
            {"code": "custom_id_coerced", "line": self._first_coerced_line, "message": message, "param": "custom_id"}
        ]


def _shown(name: str) -> str:
    return ascii(name[:80])
