"""Results of a job by ranges of rows: who wins a shard, and which row kills its worker.

A shard's bytes lie under a key that carries the fence; the row names the winner, once. So a worker that was paused
past its lease can waste time but never change a result.

A crash has suspects: the shards that the dead child had in hand. They are run alone from then on, and one that
crashes the child alone for the second time is halved, until a single row is left:

    0..16 crashed among others  -> alone
    0..16 crashed twice alone   -> 0..8, 8..16   (each alone, one crash inherited)
    8..16 crashed               -> 8..12, 12..16
    ...
    9..10 crashed twice alone   -> this row gets an error line, the others their answers
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import F, Max
from django.db.models.functions import Now

from control.core.settings.config import get_config
from control.queue.jobs.models import JobShard
from control.queue.jobs.selectors import shards_open
from control.queue.jobs.state import Claim, event_add, from_now, update_held

CRASHES_TO_CONVICT = 2
# More rows than this do not crash one worker by themselves: the model or the machine does.
MAX_CRASHED_ROWS = 8
ROW_CRASHED_WORKER = "row_crashed_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRows:
    """What became of a shard's rows."""

    completed: int
    failed: int
    usage: Mapping[str, int]  # prompt_tokens, completion_tokens, total_tokens


def job_commit_shard(*, claim: Claim, shard_no: int, storage_key: str, rows: ShardRows) -> bool:
    """Names the winner of a shard; that is progress, and a renewal too.

    Returns: False: the shard had a winner, or was halved meanwhile; nothing changes.
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
    """Draws the conclusion of a child's death while these shards were in its hands.

    Returns: a shard of one row that is convicted; the caller writes the row's error line and commits it.
    Raises: LeaseLost.
    """
    with transaction.atomic():
        update_held(claim, progress_at=Now())
        suspects = list(shards_open(claim.job_id).filter(shard_no__in=shard_nos))
        if _num_convicted(claim.job_id) >= MAX_CRASHED_ROWS:
            return None  # nothing is narrowed any more, so the attempts count as stalled and the job is given up
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
    """Effects: the shard becomes its first half, a new one the second. Narrowing the search counts as progress."""
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
    """A half is known to be likely guilty; a single row gets the benefit of the doubt before it is given up."""
    return 0 if num_rows == 1 else CRASHES_TO_CONVICT - 1
