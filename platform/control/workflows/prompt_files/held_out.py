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
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from control.core.api.errors import ApiError
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import register_stored
from control.data.files.models import File
from control.data.files.services import file_store
from control.models.catalog.models import BaseModel
from control.workflows.prompt_files.lines import MAX_LINE_BYTES, Readable, read_lines
from control.workflows.prompt_files.rows import ENDPOINTS, RowError, parse_object, parse_row
from control.workflows.prompt_files.validation import ModelChoice, validate

HELD_OUT_FRACTION = 0.1


def held_out_key(organization_id: str, pipeline_id: str) -> str:
    """Storage key of the normalised held-out rows, which workers read."""
    return f"{organization_id}/pipelines/{pipeline_id}/held_out.jsonl"


@dataclass(frozen=True, slots=True)
class _Eligible:
    """A row is eligible to be held out if it is valid and no other row has its custom_id."""

    custom_ids: list[str]
    endpoint: str  # of most valid rows


def split_prompts(file: File, *, held_out: int | None) -> tuple[File, File]:
    """Returns: the file of training prompts and the held-out file; both rows are unsaved, as `file_store` returns them.

    Args:
        held_out: number of rows to hold out; None: a tenth of the rows, at least one.

    Raises: ApiError: 400, there are not enough rows for both files.
    """
    with _opened(file) as source:
        eligible = _eligible(source)
    num_rows = len(eligible.custom_ids)
    count = held_out or max(1, round(num_rows * HELD_OUT_FRACTION))
    if num_rows <= count:
        message = f"prompts_file must have more than {count} usable rows to hold {count} out, got {num_rows}"
        raise ApiError(400, message, "too_few_rows", "prompts_file")
    held_out_ids = frozenset(heapq.nsmallest(count, eligible.custom_ids, key=_rank))
    stem = Path(file.filename).stem
    with staging_folder() as folder:
        rest_path, held_out_path = folder / "rest", folder / "held_out"
        with (
            _opened(file) as source,
            rest_path.open("wb") as rest,
            held_out_path.open("wb") as held,
        ):
            _divide(source, held_out_ids, rest=rest, held=held)
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


def endpoint_of(file: File) -> str:
    """The endpoint of most rows; chat if no row is valid. Raises: ApiError: 404, the file has been deleted."""
    with _opened(file) as source:
        return _eligible(source).endpoint


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

    Raises: ApiError: 400 for the first bad line, or because every prompt is a training prompt.
    """
    choice = ModelChoice(visible=[base_model.name], default=base_model.name, is_fixed=True)
    trained = frozenset() if training_prompts is None else _prompt_digests(training_prompts)
    num_duplicates = 0
    with staging_folder() as folder:
        path = folder / "rows.jsonl"
        with _opened(file) as source, path.open("wb") as rows:

            def write(line: bytes) -> None:
                nonlocal num_duplicates
                if trained and _prompt_digest(json.loads(line)["body"]) in trained:
                    num_duplicates += 1
                else:
                    rows.write(line)

            report = validate(source, endpoint=endpoint_of(file), models=choice, write=write)
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
    with _opened(file) as source:
        for line in read_lines(source):
            with suppress(RowError):
                digests.add(_prompt_digest(parse_object(line.content or b"").get("body")))
    return frozenset(digests)


def _prompt_digest(body: Any) -> bytes:
    """Identifies what the model reads. Two rows have the same digest if only ids or sampling settings differ."""
    read = {name: body.get(name) for name in ("messages", "prompt", "tools")} if isinstance(body, dict) else None
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).digest()


def _opened(file: File) -> BinaryIO:
    """Raises: ApiError: 404, the customer has deleted the file since the request began."""
    try:
        return get_storage().open(file.storage_key)
    except ObjectMissing as error:
        raise ApiError(404, f"The file {file.pk} has been deleted.", "file_not_found") from error


def _eligible(source: Readable) -> _Eligible:
    counts: Counter[str] = Counter()
    endpoints: Counter[str] = Counter()
    for _, custom_id, endpoint in _rows(source):
        if custom_id is not None:
            counts[custom_id] += 1
            endpoints[endpoint] += 1
    unique = [custom_id for custom_id, count in counts.items() if count == 1]
    return _Eligible(unique, endpoints.most_common(1)[0][0] if endpoints else ENDPOINTS[0])


def _rows(source: Readable) -> Iterator[tuple[bytes, str | None, str]]:
    """Yields each line, its custom_id (None if the line is invalid) and the endpoint for which the line is valid."""
    for line in read_lines(source):
        content = line.content
        if content is None:
            message = f"prompts_file line {line.number}: a line must have at most {MAX_LINE_BYTES:,} bytes"
            raise ApiError(400, f"{message}, got {line.size_bytes:,}", "line_too_long", "prompts_file")
        for endpoint in ENDPOINTS:
            try:
                yield content, parse_row(content, endpoint=endpoint).custom_id, endpoint
                break
            except RowError:
                continue
        else:
            yield content, None, ENDPOINTS[0]


def _divide(source: Readable, held_out_ids: frozenset[str], *, rest: IO[bytes], held: IO[bytes]) -> None:
    for line, custom_id, _ in _rows(source):
        target, other = (held, rest) if custom_id in held_out_ids else (rest, held)
        target.write(line + b"\n")
        other.write(b"\n")


def _rank(custom_id: str) -> bytes:
    """Sort key that puts the rows in a pseudo-random order, which is the same in every run."""
    return hashlib.sha256(custom_id.encode()).digest()
