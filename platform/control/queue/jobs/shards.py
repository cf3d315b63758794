"""Commits the results of shards (ranges of a job's rows), and finds rows that crash the worker.

The storage key of a shard's result contains the fence, and the shard's row names the committed key, once. A worker that
was suspended until its lease expired can therefore waste time but never change a result.

If a child process dies, the shards that it was running are suspects. They are run alone from then on, and a shard that
crashes the child alone for the second time is halved, until a single row is left:

    0..16 crashed among others  -> alone
    0..16 crashed twice alone   -> 0..8, 8..16   (each alone, one crash inherited)
    8..16 crashed               -> 8..12, 12..16
    ...
    9..10 crashed twice alone   -> this row gets an error line, the other rows get answers
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F, Max
from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.core.settings.config import get_config
from control.queue.jobs.models import JobShard
from control.queue.jobs.selectors import shards_open
from control.queue.jobs.state import Claim, event_add, update_held

CRASHES_TO_CONVICT = 2
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

    Returns: False if the shard already had a result, or was halved meanwhile; nothing changes then.
    Raises: LeaseLost.
    """
    with transaction.atomic():
        update_held(
            claim, lease_until=from_now(get_config().lease_seconds), stalled_attempts=0, progress_at=Now()
        )  # first, for its lock on the job's row
        won = JobShard.objects.filter(job_id=claim.job_id, shard_no=shard_no, storage_key="").update(
            storage_key=storage_key,
            fence=claim.fence,
            completed=rows.completed,
            failed=rows.failed,
            usage=dict(rows.usage),
        )
        if won:
            data = {"fence": claim.fence, "shard_no": shard_no, "completed": rows.completed, "failed": rows.failed}
            event_add(job_id=claim.job_id, type="shard_committed", data=data)
    return bool(won)


def job_blame_shards(*, claim: Claim, shard_nos: Sequence[int]) -> JobShard | None:
    """Call this when a child process has died while it was running these shards.

    Returns: a shard whose only row has crashed the worker repeatedly; the caller commits an error line for it.
    Raises: LeaseLost.
    """
    with transaction.atomic():
        update_held(claim, progress_at=Now())
        suspects = list(shards_open(claim.job_id).filter(shard_no__in=shard_nos))
        if _num_convicted(claim.job_id) >= MAX_CRASHED_ROWS:
            return None  # no more halving, so attempts count as stalled and the job fails
        if len(suspects) != 1:
            shards_open(claim.job_id).filter(shard_no__in=shard_nos).update(alone=True)
            return None
        suspect = suspects[0]
        JobShard.objects.filter(pk=suspect.pk).update(alone=True, crashes=F("crashes") + 1)
        if suspect.crashes + 1 < CRASHES_TO_CONVICT:
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
    JobShard.objects.filter(pk=shard.pk).update(row_to=middle, crashes=_inherited(middle - shard.row_from))
    JobShard.objects.create(
        job_id=claim.job_id,
        shard_no=new_no,
        row_from=middle,
        row_to=shard.row_to,
        alone=True,
        crashes=_inherited(shard.row_to - middle),
    )
    update_held(claim, stalled_attempts=0)
    data = {"shard_no": shard.shard_no, "row_from": shard.row_from, "middle": middle, "row_to": shard.row_to}
    event_add(job_id=claim.job_id, type="shard_halved", data={"fence": claim.fence, "new_shard_no": new_no, **data})


def _num_convicted(job_id: str) -> int:
    won = JobShard.objects.filter(job_id=job_id, crashes__gte=CRASHES_TO_CONVICT).exclude(storage_key="")
    return won.count()


def _inherited(num_rows: int) -> int:
    """Halves are halved again after one more crash; a single row must crash the worker twice before it fails."""
    return 0 if num_rows == 1 else CRASHES_TO_CONVICT - 1
