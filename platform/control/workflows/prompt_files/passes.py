"""The passes over prompts files and held-out files. `child` runs them, so they import no large packages."""

import hashlib
import heapq
import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from control.workflows.prompt_files.child import FileRefused, serve
from control.workflows.prompt_files.lines import MAX_LINE_BYTES, Line, Readable, read_lines
from control.workflows.prompt_files.rows import ENDPOINTS, RowError, parse_object, read_row
from control.workflows.prompt_files.sketches import prompt_key
from control.workflows.prompt_files.validation import MAX_ROWS, ModelChoice, read_text_lines, validate

HELD_OUT_FRACTION = 0.1
_ENDPOINT_ROWS = 100


def find_endpoint(source: Readable) -> dict[str, Any]:
    """Finds the `endpoint` of most of the first rows; the endpoint of chat completions if no row is valid."""
    rows = map(_valid_row, islice(rows_of(source), _ENDPOINT_ROWS))
    endpoints = Counter(row.endpoint for row in rows if row is not None)
    return {"endpoint": endpoints.most_common(1)[0][0] if endpoints else ENDPOINTS[0]}


def choose_held_out(source: Readable, *, held_out: int | None, path: str) -> dict[str, Any]:
    """Writes the numbers of the lines to hold out, unless there are too few rows for both files.

    Returns: `num_rows`, the number of eligible rows, and `count`, the number of rows to hold out.
    """
    line_of_id = _eligible_lines(source)
    count = held_out or max(1, round(len(line_of_id) * HELD_OUT_FRACTION))
    chosen = [line_of_id[custom_id] for custom_id in heapq.nsmallest(count, line_of_id, key=_rank)]
    Path(path).write_text(json.dumps(chosen))
    return {"num_rows": len(line_of_id), "count": count}


def divide(
    source: Readable, *, lines_path: str, rest_path: str, held_out_path: str, dropped_path: str | None = None
) -> dict[str, Any]:
    """Copies each line to the held-out file or to the file of the remaining prompts, and a blank line to the other one.

    The lines that `dropped_path` lists are blank in both files.
    """
    held_out_lines = _line_numbers(lines_path)
    dropped_lines = frozenset() if dropped_path is None else _line_numbers(dropped_path)
    with open(rest_path, "wb") as rest, open(held_out_path, "wb") as held_out:
        for line in read_lines(source):
            assert line.content is not None, "longer lines have been refused"
            target, other = (held_out, rest) if line.number in held_out_lines else (rest, held_out)
            target.write((b"" if line.number in dropped_lines else line.content) + b"\n")
            other.write(b"\n")
    return {}


def without_lines(source: Readable, *, lines_path: str, path: str) -> dict[str, Any]:
    """Copies the lines, with blank lines in place of the listed ones. Lines that are too long are refused."""
    left_out = _line_numbers(lines_path)
    with open(path, "wb") as rest:
        for line in read_lines(source):
            if line.content is None:
                raise _too_long(line)
            rest.write((b"" if line.number in left_out else line.content) + b"\n")
    return {}


def _line_numbers(path: str) -> frozenset[int]:
    return frozenset(json.loads(Path(path).read_text()))


def normalise(source: Readable, *, endpoint: str, model: str, path: str, digests_path: str | None) -> dict[str, Any]:
    """Writes the rows in the format of workers, without those whose `prompt_key` is in `digests_path`.

    Returns: `num_rows`, `num_duplicates`, `num_errors` and the first `error`.
    """
    trained = frozenset() if digests_path is None else frozenset(Path(digests_path).read_text().splitlines())
    choice = ModelChoice(visible=[model], default=model, is_fixed=True)
    num_duplicates = 0
    with open(path, "wb") as rows:

        def write(line: bytes) -> None:
            nonlocal num_duplicates
            if trained and prompt_key(json.loads(line)["body"]).hex() in trained:
                num_duplicates += 1
            else:
                rows.write(line)

        report = validate(source, endpoint=endpoint, models=choice, write=write)
    return {
        "num_rows": report.num_rows,
        "num_duplicates": num_duplicates,
        "num_errors": report.num_errors,
        "error": report.errors[0] if report.errors else None,
    }


@dataclass(frozen=True, slots=True)
class _ValidRow:
    custom_id: str
    endpoint: str  # for which the row is valid


def _eligible_lines(source: Readable) -> dict[str, int]:
    """Returns the line number of each eligible row, by custom_id."""
    line_of_id: dict[str, int] = {}
    repeated: set[str] = set()
    for line in rows_of(source):
        if line.content is None:
            raise _too_long(line)
        if (row := _valid_row(line)) is not None and line_of_id.setdefault(row.custom_id, line.number) != line.number:
            repeated.add(row.custom_id)
    return {custom_id: number for custom_id, number in line_of_id.items() if custom_id not in repeated}


def rows_of(source: Readable) -> Iterator[Line]:
    """Yields the lines that are not blank. Raises: FileRefused: there are more than a batch can have."""

    def refuse(number: int | None, error: RowError) -> NoReturn:
        raise FileRefused(error.code, f"line {number}: {error.message}")

    lines = read_text_lines(source, max_rows=MAX_ROWS, max_line_bytes=MAX_LINE_BYTES, fail=refuse)
    for num_before, line in enumerate(lines):
        if num_before == MAX_ROWS:
            refuse(line.number, RowError("too_many_tasks", f"A batch can have at most {MAX_ROWS:,} rows."))
        yield line


def _too_long(line: Line) -> FileRefused:
    message = f"line {line.number}: a line must have at most {MAX_LINE_BYTES:,} bytes, got {line.size_bytes:,}"
    return FileRefused("line_too_long", message)


def _valid_row(line: Line) -> _ValidRow | None:
    try:
        values = parse_object(line.content or b"")
    except RowError:
        return None
    for endpoint in ENDPOINTS:
        with suppress(RowError):
            return _ValidRow(read_row(values, endpoint=endpoint).custom_id, endpoint)
    return None


def _rank(custom_id: str) -> bytes:
    """Sort key that puts the rows in a pseudo-random order, which is the same in every run."""
    return hashlib.sha256(custom_id.encode()).digest()


if __name__ == "__main__":
    passes = (find_endpoint, choose_held_out, divide, without_lines, normalise)
    sys.exit(serve({one.__name__: one for one in passes}))
