"""What must be true of a job's recorded life, whatever happened to workers, queue, storage and database meanwhile."""

from control.batches.models import Batch
from control.jobs.models import Job, JobEvent, JobShard

ENDINGS = {"succeeded", "failed", "cancelled"}


def check_history(job: Job) -> None:
    """Of a job that has ended."""
    events = list(JobEvent.objects.filter(job=job).order_by("seq"))
    assert [event.seq for event in events] == list(range(1, len(events) + 1)), "an event is missing"
    assert [event.type in ENDINGS for event in events].count(True) == 1, "a job ends once"

    fence = 0
    for event in events:
        if event.type == "claimed":
            assert event.data["fence"] == fence + 1, "a claim was lost or doubled"
            fence += 1
        elif "fence" in event.data:
            assert event.data["fence"] == fence, f"{event.type} was written by an attempt that had lost the job"
    assert job.fence == job.attempt == fence

    won = [event.data["shard_no"] for event in events if event.type == "shard_committed"]
    assert len(won) == len(set(won)), "a shard was won twice"
    assert set(won) == set(JobShard.objects.filter(job=job).exclude(storage_key="").values_list("shard_no", flat=True))
    rows = [row for shard in JobShard.objects.filter(job=job) for row in range(shard.row_from, shard.row_to)]
    assert len(rows) == len(set(rows)), "two shards share a row"

    batch = Batch.objects.filter(job=job).first()
    if batch is not None:
        assert batch.completed + batch.failed + batch.unanswered == batch.total, "a row is not counted, or twice"
        assert not rows or sorted(rows) == list(range(batch.total)), "a row is in no shard"
