"""Assembles the results of a batch: exactly one line for every input row, in input order.

    rows.jsonl ─┐
                ├─> row i: its entry in the winner of its shard, or an error line if the shard has no winner
    shards ─────┘      ├─ ok      -> output-<hash>.jsonl, tokens-<hash>.jsonl
                       └─ not ok  -> errors-<hash>.jsonl

Several workers may compute the same shard. The winner of a shard is its first committed result.

Assembling can be interrupted and repeated: nothing is visible before the last transaction, which ends the batch and
creates the database rows of the files. The storage keys contain a hash of the content, so two workers that assemble at
the same time never overwrite each other's objects.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from typing import Any, Literal

from django.db import transaction

from control.core.storage.backends import get_storage
from control.core.storage.staging import StagedFile, staged_writer
from control.data.files.models import File
from control.data.files.services import file_record
from control.workflows.batches.models import Batch
from control.workflows.batches.results import ResultFiles, collect
from control.workflows.batches.state import TERMINAL, Status, transition

Final = Literal["completed", "cancelled", "expired", "failed"]

UNANSWERED = {  # code and message of the error lines of rows that were not run, by the batch's final status
    Status.CANCELLED: ("batch_cancelled", "This request was not executed: the batch was cancelled."),
    Status.EXPIRED: ("batch_expired", "This request could not be executed before the completion window expired."),
    Status.FAILED: ("batch_failed", "This request was not executed: the batch failed."),
}


def batch_assemble(*, batch: Batch, final: Final, error: Mapping[str, Any] | None = None) -> Batch:
    """Ends the batch and writes all its rows to its output and error files. If the batch has ended already, nothing
    changes.

    A batch that is being cancelled becomes `cancelled` whatever `final` is, because the API already shows `cancelling`.

    Args:
        error: {"code", "message"} of the job's failure, shown in the batch's `errors`.
    Raises: ResultsError: the content of the shards does not match their rows in the database.
    """
    batch.refresh_from_db()
    if batch.status in TERMINAL:
        return batch
    has_rows = batch.status != Status.VALIDATING
    if final == "cancelled":
        transition(batch, Status.CANCELLING)
    elif has_rows:
        transition(batch, Status.FINALIZING)  # has no effect on a batch that is being cancelled
    end = Status.CANCELLED if batch.status == Status.CANCELLING else Status(final)
    errors = [{"code": error["code"], "line": None, "message": error["message"], "param": None}] if error else None
    if not batch.total:  # the batch ends before its input file was validated
        transition(batch, end, errors=errors, num_errors=len(errors or ()))
        return batch
    with ExitStack() as stack:
        files = ResultFiles(*(stack.enter_context(staged_writer()) for _ in fields(ResultFiles)))
        results = collect(batch, files, unanswered=UNANSWERED.get(end))
        unanswered = 0 if end == Status.FAILED else results.unanswered  # the rows of a failed batch count as failed
        values = {
            "completed": results.completed,
            "failed": batch.total - results.completed - unanswered,
            "unanswered": unanswered,
            "errors_by_code": results.errors_by_code,
            "usage": results.usage,
            "truncated": results.truncated,
            "errors": errors,
            "num_errors": len(errors or ()),
        }
        _publish(batch, end, files, values)
    return batch


@dataclass(frozen=True, slots=True)
class _Stored:
    key: str
    staged: StagedFile


def _publish(batch: Batch, end: Status, files: ResultFiles, values: dict[str, Any]) -> None:
    """Stores the files and ends the batch.

    If another worker has ended the batch first, deletes the stored files to which the batch does not refer.
    """
    storage = get_storage()
    stored: dict[str, _Stored] = {}
    for field in fields(files):
        staged = getattr(files, field.name).finish()
        if staged.size_bytes:  # an empty file is not stored; the batch then has null instead of its id
            key = f"{batch.organization_id}/batches/{batch.pk}/{field.name}-{staged.sha256[:16]}.jsonl"
            storage.put_file(key, staged.path)
            stored[field.name] = _Stored(key, staged)
    with transaction.atomic():
        tokens_key = stored["tokens"].key if "tokens" in stored else ""
        if transition(batch, end, tokens_key=tokens_key, **values):
            output, errors = (_record(batch, name, stored.get(name)) for name in ("output", "errors"))
            Batch.objects.filter(pk=batch.pk).update(output_file=output, error_file=errors)
    batch.refresh_from_db()
    used_keys = {batch.tokens_key, *(file.storage_key for file in (batch.output_file, batch.error_file) if file)}
    for item in stored.values():
        if item.key not in used_keys:
            storage.delete(item.key)


def _record(batch: Batch, name: str, stored: _Stored | None) -> File | None:
    if stored is None:
        return None
    return file_record(
        organization=batch.organization,
        filename=f"{batch.pk}_{name}.jsonl",
        purpose=File.Purpose.BATCH_OUTPUT,
        staged=stored.staged,
        storage_key=stored.key,
        expires_after=batch.output_expires_after,
    )
