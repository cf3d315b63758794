"""Commits of shards, and the search for a row that crashes its worker."""

import pytest

from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.selectors import shards_open
from control.queue.jobs.shards import MAX_CRASHED_ROWS, ShardRows, job_blame_shards, job_commit_shard
from control.queue.jobs.state import Claim
from tests.control.queue.jobs.helpers import add_shards, claim, expire_lease, submit
from workers.supervisor.batch import next_shards

pytestmark = pytest.mark.django_db

ROWS = ShardRows(completed=1, failed=0, usage={})


def ranges(job: Job) -> list[tuple[int, int]]:
    return [(shard.row_from, shard.row_to) for shard in JobShard.objects.filter(job=job).order_by("row_from")]


def find_poison(job: Job, poison: set[int], *, limit: int = 200) -> tuple[set[int], int]:
    """Simulates a worker that crashes at poison rows. Returns: the rows found, and the longest stall."""
    convicted, stalled = set[int](), 0
    for _ in range(limit):
        hand = next_shards(list(shards_open(job.pk)))
        if not hand:
            return convicted, stalled
        held = claim(job)
        stalled = max(stalled, Job.objects.get(pk=job.pk).stalled_attempts)
        crashed = False
        for shard in hand:
            rows = set(range(shard.row_from, shard.row_to))
            if crashed := bool(rows & (poison - convicted)):
                break
            commit(held, shard.shard_no)
        if crashed:
            still_open = [shard.shard_no for shard in shards_open(job.pk) if shard in hand]
            if guilty := job_blame_shards(claim=held, shard_nos=still_open[:16]):
                convicted.add(guilty.row_from)
                commit(held, guilty.shard_no)
        expire_lease(job)
    raise AssertionError(f"not done after {limit} attempts: {ranges(job)}")


def commit(held: Claim, shard_no: int) -> bool:
    return job_commit_shard(claim=held, shard_no=shard_no, storage_key=f"{shard_no}.{held.fence}", rows=ROWS)


def test_a_shard_is_committed_only_once() -> None:
    job = submit()
    add_shards(job, 4)
    first = claim(job)
    assert commit(first, 0)
    expire_lease(job)
    assert not commit(claim(job), 0)
    shard = JobShard.objects.get(job=job)
    assert (shard.storage_key, shard.fence) == ("0.1", 1)


def test_a_repeated_commit_writes_one_event() -> None:
    job = submit()
    add_shards(job, 4)
    held = claim(job)
    assert [commit(held, 0), commit(held, 0)] == [True, False]
    assert job.events.filter(type="shard_committed").count() == 1


@pytest.mark.parametrize(
    ("sizes", "poison"),
    [
        ((1,), {0}),
        ((16,), {0}),
        ((16,), {15}),
        ((16, 16, 16), {20}),
        ((16, 16, 5), {0, 36}),
        ((7, 7), {2, 3, 8, 13}),
        ((256,), {101, 102}),
        ((4,) * 30, {3, 50, 119}),
    ],
)
def test_exactly_the_poison_rows_are_found(sizes: tuple[int, ...], poison: set[int]) -> None:
    job = submit()
    add_shards(job, *sizes)
    convicted, longest_stall = find_poison(job, poison)
    assert convicted == poison
    assert longest_stall <= 3, "the job would have been given up"
    assert not shards_open(job.pk).exists()


def test_halving_keeps_every_row_in_one_shard() -> None:
    job = submit()
    add_shards(job, 5, 16, 3)
    find_poison(job, {11})
    cover = [row for first, end in ranges(job) for row in range(first, end)]
    assert cover == list(range(24))


def test_if_every_row_crashes_the_worker_only_a_few_are_marked_as_crashed() -> None:
    job = submit()
    add_shards(job, 32)
    with pytest.raises(AssertionError, match="not done"):
        find_poison(job, set(range(32)))
    assert JobShard.objects.filter(job=job).exclude(storage_key="").count() == MAX_CRASHED_ROWS
    assert Job.objects.get(pk=job.pk).stalled_attempts > 3, "the job must be given up"
