"""Splits off the held-out prompts, on which a speculator is never trained. The split uses a hash, so it is repeatable.

    prompts ─┬─ lowest hashes of custom_id ──> held-out file
             └─ the rest ──> prompts file of the batch

In place of a row that is in the other file, each of the two files has a blank line. The line numbers in error messages
are therefore those of the customer's file.
"""

import hashlib
import heapq
import json
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import register_stored
from control.data.files.models import File
from control.data.files.services import file_store
from control.models.catalog.models import BaseModel
from control.tenants.quotas.file_work import file_work, text_size_check
from control.workflows.prompt_files.lines import MAX_LINE_BYTES, Line, Readable, read_lines
from control.workflows.prompt_files.rows import ENDPOINTS, RowError, parse_object, read_row
from control.workflows.prompt_files.validation import MAX_ROWS, ModelChoice, read_text_lines, validate

HELD_OUT_FRACTION = 0.1
_ENDPOINT_ROWS = 100


def held_out_key(organization_id: str, pipeline_id: str) -> str:
    """Storage key of the normalised held-out rows, which workers read."""
    return f"{organization_id}/pipelines/{pipeline_id}/held_out.jsonl"


def split_prompts(file: File, *, held_out: int | None) -> tuple[File, File]:
    """Returns: the file of training prompts and the held-out file; both rows are unsaved, as `file_store` returns them.

    A row is eligible to be held out if it is valid and no other row has its custom_id.

    Args:
        held_out: number of rows to hold out; None: a tenth of the rows, at least one.

    Raises: ApiError: 400, there are not enough rows for both files, or more than a batch can have; 413, the file is
        too large.
    """
    with _read_whole(file, "prompts_file") as source:
        line_of_id = _eligible_lines(source, "prompts_file")
    num_rows = len(line_of_id)
    count = held_out or max(1, round(num_rows * HELD_OUT_FRACTION))
    if num_rows <= count:
        message = f"prompts_file must have more than {count} usable rows to hold {count} out, got {num_rows}"
        raise ApiError(400, message, "too_few_rows", "prompts_file")
    held_out_lines = {line_of_id[custom_id] for custom_id in heapq.nsmallest(count, line_of_id, key=_rank)}
    stem = Path(file.filename).stem
    with staging_folder() as folder:
        rest_path, held_out_path = folder / "rest", folder / "held_out"
        with (
            _read_whole(file, "prompts_file") as source,
            rest_path.open("wb") as rest,
            held_out_path.open("wb") as held,
        ):
            _divide(source, held_out_lines, rest=rest, held=held)
        made = [
            file_store(
                organization=file.organization,
                filename=f"{stem}.{part}.jsonl",
                purpose=File.Purpose.BATCH,
                staged=measure(path),
            )
            for part, path in (("prompts", rest_path), ("held-out", held_out_path))
        ]
    return made[0], made[1]


def endpoint_of(file: File, param: str = "prompts_file") -> str:
    """The endpoint of most of the first rows; chat if none is valid. A batch refuses rows for another endpoint.

    Raises: ApiError: 400, the file is compressed or has too many blank lines; 404, it has been deleted.
    """
    with _opened(file, param) as source:
        rows = map(_valid_row, islice(_rows(source, param), _ENDPOINT_ROWS))
        endpoints = Counter(row.endpoint for row in rows if row is not None)
    return endpoints.most_common(1)[0][0] if endpoints else ENDPOINTS[0]


@dataclass(frozen=True, slots=True)
class HeldOut:
    num_rows: int  # stored rows
    num_duplicates: int  # rows that were left out because their prompt is a training prompt


def normalise_held_out(
    file: File,
    *,
    base_model: BaseModel,
    key: str,
    param: str = "held_out_file",
    training_prompts: File | None = None,
) -> HeldOut:
    """Stores the normalised rows for workers, without those whose prompt is also in `training_prompts`.

    Args:
        param: the request's parameter that named the file.

    Raises: ApiError: 400 for the first bad line, or because every prompt is a training prompt; 413, the file is too
        large.
    """
    endpoint = endpoint_of(file, param)
    choice = ModelChoice(visible=[base_model.name], default=base_model.name, is_fixed=True)
    trained = frozenset() if training_prompts is None else _prompt_digests(training_prompts)
    num_duplicates = 0
    with staging_folder() as folder:
        path = folder / "rows.jsonl"
        with _read_whole(file, param) as source, path.open("wb") as rows:

            def write(line: bytes) -> None:
                nonlocal num_duplicates
                if trained and _prompt_digest(json.loads(line)["body"]) in trained:
                    num_duplicates += 1
                else:
                    rows.write(line)

            report = validate(source, endpoint=endpoint, models=choice, write=write)
        if report.errors:
            first = report.errors[0]
            position = "" if first["line"] is None else f" line {first['line']}:"
            message = f"{param}:{position} {first['message']} ({report.num_errors} errors in all)"
            raise ApiError(400, message, first["code"], param)
        if num_duplicates == report.num_rows:
            message = f"{param}: all {num_duplicates} prompts are also in the training prompts, so none is held out"
            raise ApiError(400, message, "no_held_out_prompts", param)
        get_storage().put_file(key, path)
        register_stored(key)
    return HeldOut(report.num_rows - num_duplicates, num_duplicates)


def _prompt_digests(file: File) -> frozenset[bytes]:
    """Returns digests of the prompts of all valid rows; the batch reports the invalid ones."""
    digests = set()
    with _read_whole(file, "prompts_file") as source:
        for line in _rows(source, "prompts_file"):
            with suppress(RowError):
                digests.add(_prompt_digest(parse_object(line.content or b"").get("body")))
    return frozenset(digests)


def _prompt_digest(body: Any) -> bytes:
    """Identifies what the model reads. Two rows have the same digest if only ids or sampling settings differ."""
    read = {name: body.get(name) for name in ("messages", "prompt", "tools")} if isinstance(body, dict) else None
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).digest()


@contextmanager
def _read_whole(file: File, param: str) -> Iterator[BinaryIO]:
    """Raises: ApiError: 404, as `_opened`; 413, the file is too large; 429, too many files are being read."""
    text_size_check(file.size_bytes, param)
    with file_work.taken(file.organization_id), _opened(file, param) as source:
        yield source


def _opened(file: File, param: str) -> BinaryIO:
    """Raises: ApiError: 404, the customer has deleted the file since the request began."""
    try:
        return get_storage().open(file.storage_key)
    except ObjectMissing as error:
        raise ApiError(404, f"The file {file.pk} has been deleted.", "file_not_found", param) from error


@dataclass(frozen=True, slots=True)
class _ValidRow:
    custom_id: str
    endpoint: str  # for which the row is valid


def _eligible_lines(source: Readable, param: str) -> dict[str, int]:
    """Returns the line number of each eligible row, by custom_id."""
    line_of_id: dict[str, int] = {}
    repeated: set[str] = set()
    for line in _rows(source, param):
        if line.content is None:
            message = f"{param} line {line.number}: a line must have at most {MAX_LINE_BYTES:,} bytes"
            raise ApiError(400, f"{message}, got {line.size_bytes:,}", "line_too_long", param)
        if (row := _valid_row(line)) is not None and line_of_id.setdefault(row.custom_id, line.number) != line.number:
            repeated.add(row.custom_id)
    return {custom_id: number for custom_id, number in line_of_id.items() if custom_id not in repeated}


def _rows(source: Readable, param: str) -> Iterator[Line]:
    """Yields the lines that are not blank. Raises: ApiError: 400, there are more than a batch can have."""

    def refuse(number: int | None, error: RowError) -> NoReturn:
        raise ApiError(400, f"{param} line {number}: {error.message}", error.code, param)

    lines = read_text_lines(source, max_rows=MAX_ROWS, max_line_bytes=MAX_LINE_BYTES, fail=refuse)
    for num_before, line in enumerate(lines):
        if num_before == MAX_ROWS:
            refuse(line.number, RowError("too_many_tasks", f"A batch can have at most {MAX_ROWS:,} rows."))
        yield line


def _valid_row(line: Line) -> _ValidRow | None:
    try:
        values = parse_object(line.content or b"")
    except RowError:
        return None
    for endpoint in ENDPOINTS:
        with suppress(RowError):
            return _ValidRow(read_row(values, endpoint=endpoint).custom_id, endpoint)
    return None


def _divide(source: Readable, held_out_lines: Collection[int], *, rest: IO[bytes], held: IO[bytes]) -> None:
    for line in read_lines(source):
        assert line.content is not None, "longer lines have been refused"
        target, other = (held, rest) if line.number in held_out_lines else (rest, held)
        target.write(line.content + b"\n")
        other.write(b"\n")


def _rank(custom_id: str) -> bytes:
    """Sort key that puts the rows in a pseudo-random order, which is the same in every run."""
    return hashlib.sha256(custom_id.encode()).digest()
