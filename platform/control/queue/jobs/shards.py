"""Commits the results of shards (ranges of a job's rows), and finds rows that crash the worker.

The storage key of a shard's result contains the fence, and the committed key is written to the shard's row only once. A
worker that was suspended until its lease expired can therefore waste time but never change a result.

If a child process dies, the shards that it was running are suspects. Each suspect is then run alone, which means in a
child process without other shards. A shard that has crashed `MAX_CRASHES` children while it ran alone is halved, until
a single row is left. In this example, 0..16 is the shard of rows 0 to 15, and row 9 crashes every child:

    a child crashes with 0..16 and other shards  -> 0..16 is run alone
    0..16 alone crashes two children             -> 0..8, 8..16: each is run alone, and inherits one crash
    8..16 alone crashes a child                  -> 8..12, 12..16
    ...
    9..10 alone crashes two children             -> this row gets an error line, the other rows get answers
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F, Max
from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.core.settings.config import get_config
from control.queue.jobs.models import JobShard
from control.queue.jobs.selectors import shards_uncommitted
from control.queue.jobs.state import Claim, event_add, update_claimed

MAX_CRASHES = 2
# If more rows crash the worker, the cause is the model or the machine, not the rows.
MAX_CRASHED_ROWS = 8
ROW_CRASHED_WORKER = "row_crashed_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """Counts of a shard's rows by result, and their usage."""

    completed: int
    failed: int
    usage: Mapping[str, int]  # prompt_tokens, completion_tokens, total_tokens


def job_commit_shard(*, claim: Claim, shard_no: int, storage_key: str, rows: ShardRows) -> bool:
    """Commits the result of a shard. This counts as progress and renews the lease.

    Returns: False if the shard already had a result, which is kept.
    Raises: LeaseLost.
    """
    with transaction.atomic():
        # This update locks the job's row, so it comes first.
        update_claimed(
            claim,
            lease_until=from_now(get_config().lease_seconds),
            stalled_attempts=0,
            lost_attempts=0,
            progress_at=Now(),
        )
        num_updated = JobShard.objects.filter(job_id=claim.job_id, shard_no=shard_no, storage_key="").update(
            storage_key=storage_key,
            fence=claim.fence,
            completed=rows.completed,
            failed=rows.failed,
            usage=dict(rows.usage),
        )
        if num_updated:
            data = {"fence": claim.fence, "shard_no": shard_no, "completed": rows.completed, "failed": rows.failed}
            event_add(job_id=claim.job_id, type="shard_committed", data=data)
    return bool(num_updated)


def job_blame_shards(*, claim: Claim, shard_nos: Sequence[int]) -> JobShard | None:
    """Records that a child process died while it was running these shards.

    If there are several shards, each will be run alone. A single shard is halved when it has crashed `MAX_CRASHES`
    child processes.
    Returns: a shard whose only row has crashed the worker repeatedly; the caller commits an error line for it.
    Raises: LeaseLost.
    """
    with transaction.atomic():
        update_claimed(claim, progress_at=Now())
        suspects = list(shards_uncommitted(claim.job_id).filter(shard_no__in=shard_nos))
        if _num_crashed_rows(claim.job_id) >= MAX_CRASHED_ROWS:
            return None  # nothing is halved any more, so the attempts count as stalled, and the job fails in the end
        if len(suspects) != 1:
            shards_uncommitted(claim.job_id).filter(shard_no__in=shard_nos).update(alone=True)
            return None
        suspect = suspects[0]
        JobShard.objects.filter(pk=suspect.pk).update(alone=True, crashes=F("crashes") + 1)
        if suspect.crashes + 1 < MAX_CRASHES:
            return None
        if suspect.row_to - suspect.row_from == 1:
            return suspect
        _halve(claim, suspect)
    return None


def _halve(claim: Claim, shard: JobShard) -> None:
    """Shrinks the shard to its first half and adds a shard for the second. This counts as progress."""
    middle = (shard.row_from + shard.row_to) // 2
    last = JobShard.objects.filter(job_id=claim.job_id).aggregate(last=Max("shard_no"))["last"]
    new_no = last + 1
    JobShard.objects.filter(pk=shard.pk).update(row_to=middle, crashes=_inherited_crashes(middle - shard.row_from))
    JobShard.objects.create(
        job_id=claim.job_id,
        shard_no=new_no,
        row_from=middle,
        row_to=shard.row_to,
        alone=True,
        crashes=_inherited_crashes(shard.row_to - middle),
    )
    update_claimed(claim, stalled_attempts=0, lost_attempts=0)
    data = {"shard_no": shard.shard_no, "row_from": shard.row_from, "middle": middle, "row_to": shard.row_to}
    event_add(job_id=claim.job_id, type="shard_halved", data={"fence": claim.fence, "new_shard_no": new_no, **data})


def _num_crashed_rows(job_id: str) -> int:
    rows = JobShard.objects.filter(job_id=job_id, crashes__gte=MAX_CRASHES).exclude(storage_key="")
    return rows.count()


def _inherited_crashes(num_rows: int) -> int:
    """Returns the initial crash count of a half shard with `num_rows` rows.

    A half is halved again after one more crash, but a single row must crash the child `MAX_CRASHES` times to fail.
    """
    return 0 if num_rows == 1 else MAX_CRASHES - 1
