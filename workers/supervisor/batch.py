"""Batch inference: child processes answer the open shards (those not yet committed) until all shards are committed.

Then the result files are assembled.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog
from django.db.models.functions import Now

from control.core.observability import metrics
from control.core.storage.backends import get_storage
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.failures import Failure
from control.queue.jobs.models import JobShard
from control.queue.jobs.selectors import num_rows_committed, shards_uncommitted
from control.queue.jobs.services import job_set_memory
from control.queue.jobs.shards import ROW_CRASHED_WORKER, ShardRows, job_blame_shards
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.caps import batch_cap_reached, batch_pause
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_commit_shard, batch_memory_needed, batch_validate
from workers.contracts import MAX_ROWS, BatchSpec, Checkpoint, FailureClass, ShardDone, ShardRange
from workers.supervisor.attempt import Attempt, Ending
from workers.supervisor.outcomes import AttemptFailed, Cancelled, ChildCrashed, Draining, Paused
from workers.supervisor.run_child import run_child
from workers.supervisor.staging import model_dir, shard_key, stage_file

log = structlog.get_logger(__name__)


class BatchHandler:
    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        batch = Batch.objects.select_related("base_model", "job").get(job_id=attempt.job.pk)
        if batch.status == Batch.Status.VALIDATING:
            batch_validate(batch=batch)
            _check_memory(attempt, batch)
        _refuse_ended(batch)
        _refuse_overdue(batch)
        if shards_uncommitted(attempt.job.pk).exists():
            self._answer_open_shards(attempt, batch)
        attempt.lease.check()
        batch_assemble(batch=batch, final="completed")
        _refuse_ended(batch)
        return {"completed": batch.completed, "failed": batch.failed, "usage": batch.usage}

    def end(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> None:
        batch = Batch.objects.select_related("base_model", "job").get(job_id=attempt.job.pk)
        error = None if failure is None or ending is Ending.EXPIRED else failure.as_error()
        batch_assemble(batch=batch, final=ending.value, error=error)

    def _answer_open_shards(self, attempt: Attempt, batch: Batch) -> None:
        rows_path = stage_file(attempt.job.params["rows_key"], attempt.folder / "rows.jsonl")

        def commit(event: ShardDone | Checkpoint) -> None:
            commit_shard_file(attempt, batch, event)
            _pause_at_cap(attempt, batch)

        while shards := next_shards(list(shards_uncommitted(attempt.job.pk))):
            _pause_at_cap(attempt, batch)
            spec = _spec(attempt, batch, rows_path, shards)
            try:
                run_child(
                    attempt,
                    spec,
                    on_result=commit,
                    rows_done_before=num_rows_committed(attempt.job.pk),
                    rows_total=batch.total,
                    seconds_left=_seconds_left(batch),
                )
            except ChildCrashed as crash:
                if crash.sent_event:
                    _blame(attempt, batch, rows_path, spec)
                raise
            _check_progress(attempt, shards)


def _check_memory(attempt: Attempt, batch: Batch) -> None:
    """Raises: Draining: the rows name a model that does not fit the device of this attempt."""
    needed = batch_memory_needed(base_model=batch.base_model, engine=batch.engine)
    if needed != attempt.job.memory_needed and not job_set_memory(claim=attempt.claim, memory_needed=needed):
        raise Draining


def _refuse_ended(batch: Batch) -> None:
    """Raises Interruption if the batch has already ended.

    A batch can end before its job: an earlier attempt died after it had ended the batch, or the customer cancelled the
    batch.
    """
    match batch.status:
        case Batch.Status.CANCELLING | Batch.Status.CANCELLED:
            raise Cancelled
        case Batch.Status.EXPIRED:
            raise _expired()
        case Batch.Status.FAILED:
            raise AttemptFailed(FailureClass.INVALID_INPUT, "invalid_batch_input", "The input file is not valid.")


def _refuse_overdue(batch: Batch) -> None:
    """Raises AttemptFailed if the batch expired in the queue. `BatchHandler.end` then assembles the finished rows."""
    seconds = _seconds_left(batch)
    if seconds is not None and seconds <= 0 and shards_uncommitted(batch.job_id).exists():
        raise _expired()


def _expired() -> AttemptFailed:
    return AttemptFailed(FailureClass.EXPIRED, "batch_expired", "The completion window has ended.")


def _pause_at_cap(attempt: Attempt, batch: Batch) -> None:
    """Pauses the batch if it reached a spend cap and has open shards; a batch without open shards costs nothing more.

    Raises: Paused; Cancelled: the customer cancelled the batch before it could be paused.
    """
    reached = batch_cap_reached(batch)
    if reached is not None and shards_uncommitted(attempt.job.pk).exists():
        is_paused = batch_pause(batch=batch, claim=attempt.claim, reached=reached)
        raise Paused(reached.message) if is_paused else Cancelled


def next_shards(open_shards: Sequence[JobShard]) -> list[JobShard]:
    """Returns the shards for the next child process.

    A shard that is suspected of crashing the child runs alone; otherwise all open shards run together. Of several
    suspects, the one with the most crashes is first, so that the search for one crashing row ends before the search for
    another one begins.
    """
    suspects = [shard for shard in open_shards if shard.alone]
    if suspects:
        return [max(suspects, key=lambda shard: (shard.crashes, -shard.row_from))]
    return list(open_shards)


def commit_shard_file(attempt: Attempt, batch: Batch, event: ShardDone | Checkpoint) -> None:
    """Uploads the shard's file, then commits the shard, so that no database row names a missing object."""
    assert isinstance(event, ShardDone), "batch inference makes no checkpoints"
    shard = JobShard.objects.filter(job_id=attempt.job.pk, shard_no=event.shard_no).first()
    if shard is None:
        raise AttemptFailed(FailureClass.BUG, "invalid_event", f"shard {event.shard_no} does not exist")
    key = shard_key(attempt.claim, shard.shard_no)
    path = Path(event.path)
    get_storage().put_file(key, path)
    rows = ShardRows(completed=event.completed, failed=event.failed, usage=event.usage)
    batch_commit_shard(batch=batch, claim=attempt.claim, shard_no=event.shard_no, storage_key=key, rows=rows)
    path.unlink(missing_ok=True)
    _observe(event)


def _observe(event: ShardDone) -> None:
    log.info("shard committed", shard=event.shard_no, completed=event.completed, failed=event.failed)
    metrics.shards.labels("batch").inc()
    metrics.rows.labels("completed").inc(event.completed)
    metrics.rows.labels("failed").inc(event.failed)
    metrics.tokens.labels("batch", "input").inc(event.usage.get("prompt_tokens", 0))
    metrics.tokens.labels("batch", "output").inc(event.usage.get("completion_tokens", 0))


def _spec(attempt: Attempt, batch: Batch, rows_path: Path, shards: Sequence[JobShard]) -> BatchSpec:
    params, options = attempt.job.params, EngineOptions.model_validate(batch.engine or {})
    base_model = batch.base_model
    assert base_model is not None, "validation has set the model"
    return BatchSpec(
        job_id=attempt.job.pk,
        model_dir=model_dir(base_model),
        model_name=base_model.name,
        input_path=str(rows_path),
        output_dir=str(attempt.folder / "shards"),
        shards=tuple(ShardRange(shard_no=s.shard_no, row_from=s.row_from, row_to=s.row_to) for s in shards),
        drafter=options.drafting or "ngram",
        max_batch_size=params.get("max_batch_size"),
        weights=options.weights,
        kv_dtype=options.kv_dtype,
        max_context=options.max_context,
        memory_share=options.memory_share,
        draft_budget=options.draft_budget,
        device=attempt.device,
        continue_cut_answers=batch.on_truncation == Batch.OnTruncation.CONTINUE,
        max_continued_tokens=batch.max_continued_tokens,
    )


def _seconds_left(batch: Batch) -> float | None:
    """Returns the seconds until the batch expires, by the database's clock: this machine's clock may be wrong."""
    if batch.expires_at is None:
        return None
    now = Batch.objects.annotate(now=Now()).values_list("now", flat=True).get(pk=batch.pk)
    return (batch.expires_at - now).total_seconds()


def _check_progress(attempt: Attempt, shards: Sequence[JobShard]) -> None:
    num_open = shards_uncommitted(attempt.job.pk).filter(shard_no__in=[shard.shard_no for shard in shards]).count()
    if num_open == len(shards):
        message = f"the child finished without any of {num_open} shards"
        raise AttemptFailed(FailureClass.BUG, "shards_missing", message)


def _blame(attempt: Attempt, batch: Batch, rows_path: Path, spec: BatchSpec) -> None:
    """Narrows the search for the row that crashed the child, and commits an error for this row once it is found."""
    # The child takes rows in order and processes at most `num_rows` at once, so the crashing row is in one of the first
    # `num_rows` open shards.
    num_rows = spec.max_batch_size or max(MAX_ROWS.values())
    shard_nos = [shard.shard_no for shard in spec.shards]
    still_open = shards_uncommitted(attempt.job.pk).filter(shard_no__in=shard_nos).values_list("shard_no", flat=True)
    crashing_shard = job_blame_shards(claim=attempt.claim, shard_nos=list(still_open[:num_rows]))
    if crashing_shard is not None:
        path = attempt.folder / "crashed_row.jsonl"
        path.write_text(json.dumps(crashed_row(attempt.job.pk, rows_path, crashing_shard.row_from)) + "\n")
        event = ShardDone(shard_no=crashing_shard.shard_no, path=str(path), completed=0, failed=1, usage={})
        commit_shard_file(attempt, batch, event)


def crashed_row(job_id: str, rows_path: Path, number: int) -> dict[str, Any]:
    """Returns the output line of a row that has no answer because it crashes every child process.

    Args: number: the row's line number, from 0.
    """
    with rows_path.open("rb") as rows:
        row = next(json.loads(line) for i, line in enumerate(rows) if i == number)
    message = "The worker process crashed twice while it answered this request alone."
    output = {
        "id": f"batch_req_{job_id.rsplit('_', 1)[-1]}_{number}",
        "custom_id": row["custom_id"],
        "response": None,
        "error": {"code": ROW_CRASHED_WORKER, "message": message},
        "attempts": row.get("earlier_attempts", 0) + 1,
    }
    return {"row": number, "custom_id": row["custom_id"], "ok": False, "output": output}
