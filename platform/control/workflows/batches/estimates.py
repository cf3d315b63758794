"""Estimates when a running batch will have answered all rows, from the rows that its current attempt has committed.

Earlier attempts and copied rows do not count: an attempt may run on another machine, and copied rows take no time. The
time to load the model counts, so the estimate falls while the first rows are answered.
"""

import datetime as dt

from django.db.models import F, OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce, Now

from control.queue.jobs.models import Job, JobShard
from control.workflows.batches.models import Batch


def with_progress(batches: QuerySet[Batch]) -> QuerySet[Batch]:
    """Annotates batches with the figures for `estimated_end` and for the progress.

    These are sums over all finished shards, the rows of the current attempt's finished shards, and the time of the
    database's clock.
    """
    shards = JobShard.objects.filter(job=OuterRef("job")).order_by().values("job")
    of_attempt = shards.filter(fence=OuterRef("job__fence")).annotate(n=Sum(F("row_to") - F("row_from"))).values("n")
    return batches.annotate(
        shards_completed=Coalesce(Subquery(shards.annotate(n=Sum("completed")).values("n")), 0),
        shards_failed=Coalesce(Subquery(shards.annotate(n=Sum("failed")).values("n")), 0),
        attempt_rows=Coalesce(Subquery(of_attempt), 0),
        now=Now(),
    )


def estimated_end(batch: Batch) -> dt.datetime | None:
    """Returns the estimate, which may be after the completion window.

    None: the batch is not running, its attempt has committed no rows yet, or it does not come from `with_progress`.
    """
    rows: int = getattr(batch, "attempt_rows", 0)
    is_running = batch.status == Batch.Status.IN_PROGRESS and batch.job.status == Job.Status.RUNNING
    if not (is_running and rows and batch.job.claimed_at):
        return None
    now: dt.datetime = batch.now  # type: ignore[attr-defined]  # annotated, like the sums
    remaining: int = batch.total - batch.shards_completed - batch.shards_failed  # type: ignore[attr-defined]
    return now + (now - batch.job.claimed_at) * (remaining / rows)
