"""A whole batch input file: every bad line is named, in one pass and constant memory.

Knows nothing of rows in a database: it reads bytes and names of models, and hands normalised lines to `write`.

    bytes -> lines.read_lines -> rows.parse_row -> unique custom_id -> one model -> write(normalised line)
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from control.workflows.prompt_files.lines import MAX_LINE_BYTES, Line, Peeked, Readable, compression_of, read_lines
from control.workflows.prompt_files.rows import Row, RowError, normalised_line, parse_row

MAX_ROWS = 50_000
MAX_ERRORS = 1_000
_SPARE_LINES = 1_000  # blank ones, beside one for each row
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Report:
    """What the file holds. `errors` and `warnings` have the form of OpenAI's: code, line, message, param."""

    num_rows: int = 0
    model: str | None = None  # the one all rows agreed on; None: no row could be read
    errors: list[dict[str, Any]] = field(default_factory=list)  # the first MAX_ERRORS, by line
    num_errors: int = 0  # all of them
    warnings: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Which models the rows may name: `visible` ones; `default` is what "" means, None if there is no such one."""

    visible: Collection[str]
    default: str | None
    is_fixed: bool  # the batch was created for `default`: no row may name another


def validate(
    source: Readable,
    *,
    endpoint: str,
    models: ModelChoice,
    write: Callable[[bytes], object],
    max_rows: int = MAX_ROWS,
    max_line_bytes: int = MAX_LINE_BYTES,
) -> Report:
    """Reads to the end, or to the row that is one too many. After an error, `write` is not called any more."""
    check = _Check(endpoint, models)
    report = check.report
    for line in read_text_lines(source, max_rows=max_rows, max_line_bytes=max_line_bytes, fail=check.fail):
        report.num_rows += 1
        if report.num_rows > max_rows:
            check.fail(line.number, RowError("too_many_tasks", f"A batch holds at most {max_rows:,} rows."))
            break
        try:
            row, model = check.row(line, max_line_bytes)
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
    """Lines that are not blank, without a byte order mark. Ends with an error where there is no point in going on."""
    peeked = Peeked(source)
    if packed := compression_of(peeked.head):
        fail(1, RowError("compressed_file", f"The file is packed with {packed}: upload it unpacked."))
        return
    for line in read_lines(peeked, max_line_bytes=max_line_bytes):
        if line.number == 1 and line.content is not None:
            line = Line(1, line.content.removeprefix(_BOM), line.size_bytes)
        if line.number > 2 * max_rows + _SPARE_LINES:
            fail(line.number, RowError("too_many_lines", f"The file has more than {line.number - 1:,} lines."))
            return
        if line.content is None or line.content.strip():
            yield line


class _Check:
    """What one line has to know of the lines before it: ids seen so far, and the model they agreed on."""

    def __init__(self, endpoint: str, models: ModelChoice) -> None:
        self.report = Report()
        self.model = models.default if models.is_fixed else None
        self._model_line: int | None = None  # where the model was settled; None: when the batch was created
        self._endpoint = endpoint
        self._models = models
        self._line_of_id: dict[str, int] = {}
        self._num_coerced = 0
        self._first_coerced: int | None = None

    def fail(self, line: int | None, error: RowError) -> None:
        self.report.num_errors += 1
        if len(self.report.errors) < MAX_ERRORS:
            self.report.errors.append(
                {"code": error.code, "line": line, "message": error.message, "param": error.param}
            )

    def row(self, line: Line, max_line_bytes: int) -> tuple[Row, str]:
        """Returns: the row and its model. Raises: RowError."""
        if line.content is None:
            message = f"A line has at most {max_line_bytes:,} bytes, got {line.size_bytes:,}"
            raise RowError("line_too_long", message)
        row = parse_row(line.content, endpoint=self._endpoint)
        first = self._line_of_id.setdefault(row.custom_id, line.number)
        if first != line.number:
            raise RowError(
                "duplicate_custom_id",
                f"custom_id {row.custom_id!a} on line {line.number} is already used on line {first}",
                "custom_id",
            )
        if row.is_id_coerced:
            self._num_coerced += 1
            self._first_coerced = self._first_coerced or line.number
        return row, self._settle(row.model, line.number)

    def _settle(self, named: str, number: int) -> str:
        """The row's model, which must be every other row's too."""
        model = named or self._models.default
        if model is None:
            message = "body.model is empty, and the batch names no model: create it with `model`"
            raise RowError("missing_model", message, "body.model")
        if model not in self._models.visible:
            raise RowError("model_not_found", f"The model {_shown(model)} does not exist", "body.model")
        if self.model is None:
            self.model, self._model_line = model, number
        if model != self.model:
            origin = "the batch's" if self._model_line is None else f"that of line {self._model_line},"
            message = f"body.model must be {origin} {_shown(self.model)}, got {_shown(model)}"
            raise RowError("model_mismatch", message, "body.model")
        return model

    def warnings(self) -> list[dict[str, Any]]:
        if not self._num_coerced:
            return []
        message = f"custom_id was a number in {self._num_coerced:,} rows and is returned as a string"
        return [{"code": "custom_id_coerced", "line": self._first_coerced, "message": message, "param": "custom_id"}]


def _shown(name: str) -> str:
    return ascii(name[:80])
