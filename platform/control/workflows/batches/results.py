"""Writes the three result files of a batch from the entries in its shards. An entry is the result of one row.

Only the winner of a shard is read: the first of its results that was committed.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import structlog

from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import StagedWriter
from control.queue.jobs.models import JobShard
from control.workflows.batches.models import Batch
from control.workflows.prompt_files.lines import read_lines

log = structlog.get_logger(__name__)

LOST = ("result_lost", "The result of this request was lost in storage.")  # code and message
_MAX_ENTRY_BYTES = 1 << 30  # practically unlimited: our own workers wrote these lines
# Maps names in the batch object to names in the shards.
_USAGE = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens", "total_tokens": "total_tokens"}


class ResultsError(Exception):
    """A row of the shards is repeated, missing, out of order, or has an unexpected custom_id. This is always a bug."""


@dataclass(frozen=True, slots=True)
class ResultFiles:
    output: StagedWriter  # OpenAI's output rows
    errors: StagedWriter  # OpenAI's error rows: rows that were refused, failed or never ran
    tokens: StagedWriter  # {"custom_id", "prompt_token_ids", "completion_token_ids", "finish_reason"}, and any "cut"


@dataclass(frozen=True, slots=True)
class Results:
    completed: int
    unanswered: int  # rows whose shard has no winner
    errors_by_code: dict[str, int]  # number of lines in `ResultFiles.errors` by error code
    usage: dict[str, int]  # input_tokens, output_tokens, total_tokens
    truncated: dict[str, int]  # answers that reached the length limits of their rows, as in `Batch.truncated`


def collect(batch: Batch, files: ResultFiles, *, unanswered: tuple[str, str] | None) -> Results:
    """Writes one line for every row of the batch to `output` or to `errors`, in input order.

    Args:
        unanswered: code and message for rows whose shard has no winner; None: every shard must have a winner. If
            given, rows of a shard whose file is lost in storage get an error line too, because the batch must end.
    Raises: ResultsError.
    """
    completed, num_unanswered, num_rows = 0, 0, 0
    codes: Counter[str] = Counter()
    truncated = Counter(dict.fromkeys(("in_trace", "in_answer", "continued", "unfinished"), 0))
    usage = Counter(dict.fromkeys(_USAGE, 0))
    rows = read_json_lines(batch.job.params["rows_key"])
    for shard in JobShard.objects.filter(job_id=batch.job_id).order_by("row_from"):
        if shard.row_from != num_rows:
            raise ResultsError(f"batch {batch.pk}: a shard must start at row {num_rows}, got {shard.row_from}")
        usage.update({name: shard.usage.get(shard_name, 0) for name, shard_name in _USAGE.items()})
        entries = _entries(shard) if shard.storage_key else None
        reason = unanswered
        if entries is not None and unanswered is not None and not _is_intact(shard):
            log.error("shard lost", batch_id=batch.pk, storage_key=shard.storage_key)
            entries, reason = None, LOST
        for row in range(shard.row_from, shard.row_to):
            source = _next(rows, f"rows.jsonl of batch {batch.pk} ends before row {row}")
            if entries is not None:
                entry = _checked(entries, shard, row, source["custom_id"])
                code = _copy(entry, files)
                truncated.update(_cuts(entry))
                completed += code is None
                codes.update(() if code is None else (code,))
            elif reason is not None:
                files.errors.write(json_line(_unanswered(batch, row, source, reason)))
                codes[reason[0]] += 1
                num_unanswered += reason is unanswered  # rows of a lost shard count as failed
            else:
                message = f"batch {batch.pk}: shard {shard.shard_no} has no committed result, yet the job completed"
                raise ResultsError(message)
        if entries is not None and next(entries, None) is not None:
            rows_expected = f"rows {shard.row_from} to {shard.row_to - 1}"
            raise ResultsError(f"{shard.storage_key} must hold only {rows_expected}, got more")
        num_rows = shard.row_to
    if num_rows != batch.total:
        raise ResultsError(f"batch {batch.pk}: shards must cover {batch.total} rows, got {num_rows}")
    return Results(
        completed=completed,
        unanswered=num_unanswered,
        errors_by_code=dict(codes),
        usage=dict(usage),
        truncated=dict(truncated),
    )


def _is_intact(shard: JobShard) -> bool:
    try:
        rows = [entry["row"] for entry in _entries(shard)]
    except (ObjectMissing, ValueError, KeyError):
        return False
    return rows == list(range(shard.row_from, shard.row_to))


def _entries(shard: JobShard) -> Iterator[dict[str, Any]]:
    return read_json_lines(shard.storage_key)


def read_json_lines(key: str) -> Iterator[dict[str, Any]]:
    """Yields the JSON objects in a stored file. Raises: ObjectMissing: when the first line is read."""
    with get_storage().open(key) as source:
        for line in read_lines(source, max_line_bytes=_MAX_ENTRY_BYTES):
            assert line.content is not None
            yield json.loads(line.content)


def row_number(output: dict[str, Any]) -> int:
    """Returns the number, from 0, of a row in an output or error file.

    A copied row keeps the id that it got in the batch that ran it.
    """
    return int(output["id"].rsplit("_", 1)[-1])


def _next(values: Iterator[dict[str, Any]], problem: str) -> dict[str, Any]:
    value = next(values, None)
    if value is None:
        raise ResultsError(problem)
    return value


def _checked(entries: Iterator[dict[str, Any]], shard: JobShard, row: int, custom_id: str) -> dict[str, Any]:
    entry = _next(entries, f"{shard.storage_key} ends before row {row}")
    if (entry["row"], entry["custom_id"]) != (row, custom_id):
        got = f"{entry['row']} {entry['custom_id']!r}"
        raise ResultsError(f"{shard.storage_key} must hold row {row} {custom_id!r} here, got {got}")
    return entry


def _copy(entry: dict[str, Any], files: ResultFiles) -> str | None:
    """Writes an entry to the result files. Returns the error's code, or None if the row was answered."""
    if not entry["ok"]:
        files.errors.write(json_line(entry["output"]))
        return (error_of(entry["output"]) or ("unknown", ""))[0]
    files.output.write(json_line(entry["output"]))
    tokens = {name: entry[name] for name in ("custom_id", "prompt_token_ids", "completion_token_ids", "finish_reason")}
    files.tokens.write(json_line(tokens | ({"cut": entry["cut"]} if entry.get("cut") else {})))
    return None


def _cuts(entry: dict[str, Any]) -> dict[str, int]:
    """Returns what the entry adds to `Results.truncated`. Entries of older workers do not say where the cut was."""
    cut = entry.get("cut")
    if cut is None:
        return {"unfinished": int(entry.get("finish_reason") == "length")}
    return {
        f"in_{cut['within']}": 1,
        "continued": int(cut["continued"]),
        "unfinished": int(entry["finish_reason"] == "length"),
    }


def error_of(output: dict[str, Any]) -> tuple[str, str] | None:
    """Returns code and message of a row's error; None if the row was answered.

    The error is at the top level if the row failed, and in the response if it was refused.
    """
    if output["error"] is not None:
        return str(output["error"]["code"]), str(output["error"].get("message", ""))
    status, error = output["response"]["status_code"], output["response"]["body"].get("error") or {}
    if status < 400:
        return None
    return str(error.get("code") or f"http_{status}"), str(error.get("message", ""))


def _unanswered(batch: Batch, row: int, source: dict[str, Any], reason: tuple[str, str]) -> dict[str, Any]:
    """Returns the error line of a row without a result. Args: source: the normalised row."""
    code, message = reason
    return {
        "id": f"batch_req_{batch.job_id.rsplit('_', 1)[-1]}_{row}",
        "custom_id": source["custom_id"],
        "response": None,
        "error": {"code": code, "message": message},
        "attempts": source.get("earlier_attempts", 0) + int(reason is LOST),
    }


def json_line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
