"""Checks the recorded events of jobs. They must be consistent after any fault of workers, queue, storage and database.

Every test with a `LiveStack` ends with `check_histories`; `test_history` shows that this check finds each kind of
fault. The claims of a job are numbered, and the number of a claim is its fence. If a job has a newer fence than a
worker, the worker has lost the job and must not write.
"""

from collections.abc import Iterable, Sequence

from django.db import transaction
from django.utils import timezone

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.queue.jobs.models import Job, JobEvent, JobShard
from control.queue.jobs.state import TERMINAL
from control.workflows.batches.models import Batch

ENDINGS = {status.value for status in TERMINAL}


def check_histories(accepted: Iterable[str] = (), *, all_ended: bool = False) -> None:
    """Checks the histories of all jobs.

    Args:
        accepted: ids of jobs that the API accepted.
        all_ended: whether all jobs must have ended.
    """
    statuses = dict(Job.objects.values_list("pk", "status"))
    lost = set(accepted) - statuses.keys()
    assert not lost, f"accepted jobs are missing: {lost}"
    for job_id, status in statuses.items():
        assert not all_ended or status in ENDINGS, f"{job_id} has not ended"
        check_history(job_id)


@transaction.atomic
def check_history(job_id: str) -> None:
    job = Job.objects.select_for_update().get(pk=job_id)  # locks out running workers
    events = list(JobEvent.objects.filter(job=job).order_by("seq"))
    shards = list(JobShard.objects.filter(job=job))
    _check_ending(job, events)
    _check_fences(job, events)
    _check_commits(events, shards)
    rows = [row for shard in shards for row in range(shard.row_from, shard.row_to)]
    assert len(rows) == len(set(rows)), "two shards share a row"
    batch = Batch.objects.filter(job=job).first()
    if batch is not None and job.status in ENDINGS:
        _check_batch(batch, rows)


def _check_ending(job: Job, events: Sequence[JobEvent]) -> None:
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), "an event is missing"
    endings = [event.type for event in events if event.type in ENDINGS]
    assert endings == ([job.status] if job.status in ENDINGS else []), "the final events do not match the job's status"
    assert not endings or events[-1].type in ENDINGS, "an event follows the final event"
    assert (job.finished_at is not None) == bool(endings), "finished_at does not match the events"
    is_in_back_off = job.not_before is not None and job.not_before > timezone.now()
    waits = job.status == Job.Status.PAUSED or (job.status == Job.Status.QUEUED and is_in_back_off)
    assert not (waits and job.cancel_requested_at), "a job to be cancelled is paused or in back-off"


def _check_fences(job: Job, events: Sequence[JobEvent]) -> None:
    fence = 0
    for event in events:
        if event.type == "claimed":
            assert event.data["fence"] == fence + 1, "a fence was skipped or used twice"
            fence += 1
        elif "fence" in event.data:
            assert event.data["fence"] == fence, f"{event.type} was written by an attempt that had lost the job"
    assert job.fence == job.attempt == fence, "a claim has no event"


def _check_commits(events: Sequence[JobEvent], shards: Sequence[JobShard]) -> None:
    commits = [event.data for event in events if event.type == "shard_committed"]
    by_shard = {data["shard_no"]: data for data in commits}
    assert len(by_shard) == len(commits), "a shard was committed twice"
    copied = {shard.pk for shard in shards if "/copied-" in shard.storage_key}  # copied from an older batch
    committed = {shard.shard_no: shard for shard in shards if shard.storage_key and shard.pk not in copied}
    assert committed.keys() == by_shard.keys(), "a shard has no event, or an event has no committed shard"
    for shard_no, shard in committed.items():
        assert shard.fence == by_shard[shard_no]["fence"], "the shard and its event have different fences"
        assert shard.storage_key.endswith(f"/{shard_no}.{shard.fence}.jsonl"), (
            "the storage key has another attempt's fence"
        )
        assert shard.completed + shard.failed == shard.row_to - shard.row_from, "a row of a shard is not counted"


def _check_batch(batch: Batch, rows: Sequence[int]) -> None:
    assert batch.completed + batch.failed + batch.unanswered == batch.total, "a row is not counted, or counted twice"
    assert not rows or sorted(rows) == list(range(batch.total)), "a row is in no shard"
    if batch.total:
        lines = _num_lines(batch.output_file), _num_lines(batch.error_file)
        assert lines[0] == batch.completed, "the output file does not have one line per completed row"
        assert sum(lines) == batch.total, "a row is in neither file, or in both"


def _num_lines(file: File | None) -> int:
    if file is None:
        return 0
    with get_storage().open(file.storage_key) as source:
        return source.read().count(b"\n")
