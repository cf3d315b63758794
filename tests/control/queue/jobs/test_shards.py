"""Each shard is committed once, and the rows that crash the worker (poison rows) are found.

Shards in progress at a crash are run one at a time afterwards. A shard that crashes its worker repeatedly is halved.
"""

import pytest

from control.queue.jobs.failures import MAX_LOST_ATTEMPTS
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.selectors import shards_uncommitted
from control.queue.jobs.shards import MAX_CRASHED_ROWS, ShardRows, job_blame_shards, job_commit_shard
from control.queue.jobs.state import Claim
from tests.control.queue.jobs.helpers import add_shards, claim, expire_lease, submit
from workers.supervisor.batch import next_shards

pytestmark = pytest.mark.django_db

ROWS = ShardRows(completed=1, failed=0, usage={})


def ranges(job: Job) -> list[tuple[int, int]]:
    return [(shard.row_from, shard.row_to) for shard in JobShard.objects.filter(job=job).order_by("row_from")]


def find_poison(job: Job, poison: set[int], *, limit: int = 200) -> tuple[set[int], int]:
    """Simulates a worker that crashes at poison rows.

    Returns: the rows found, and the maximum of `stalled_attempts`.
    """
    found_rows, most_stalled = set[int](), 0
    for _ in range(limit):
        next_open = next_shards(list(shards_uncommitted(job.pk)))
        if not next_open:
            return found_rows, most_stalled
        current_claim = claim(job)
        most_stalled = max(most_stalled, Job.objects.get(pk=job.pk).stalled_attempts)
        crashed = False
        for shard in next_open:
            rows = set(range(shard.row_from, shard.row_to))
            if crashed := bool(rows & (poison - found_rows)):
                break
            commit(current_claim, shard.shard_no)
        if crashed:
            still_open = [shard.shard_no for shard in shards_uncommitted(job.pk) if shard in next_open]
            # A worker reports at most as many shards as its batch has rows, by default 16.
            if poison_shard := job_blame_shards(claim=current_claim, shard_nos=still_open[:16]):
                found_rows.add(poison_shard.row_from)
                commit(current_claim, poison_shard.shard_no)
        expire_lease(job)
    raise AssertionError(f"shards are left after {limit} attempts: {ranges(job)}")


def commit(current_claim: Claim, shard_no: int) -> bool:
    return job_commit_shard(
        claim=current_claim, shard_no=shard_no, storage_key=f"{shard_no}.{current_claim.fence}", rows=ROWS
    )


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
    current_claim = claim(job)
    assert [commit(current_claim, 0), commit(current_claim, 0)] == [True, False]
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
def test_the_search_finds_exactly_the_poison_rows(sizes: tuple[int, ...], poison: set[int]) -> None:
    job = submit()
    add_shards(job, *sizes)
    found_rows, most_stalled = find_poison(job, poison)
    assert found_rows == poison
    assert most_stalled <= 3, "the job would have been given up"
    assert not shards_uncommitted(job.pk).exists()


def test_after_halving_shards_every_row_is_in_exactly_one_shard() -> None:
    job = submit()
    add_shards(job, 5, 16, 3)
    find_poison(job, {11})
    rows = [row for first, end in ranges(job) for row in range(first, end)]
    assert rows == list(range(24))


def test_if_every_row_crashes_the_worker_only_a_few_are_marked_as_crashed() -> None:
    job = submit()
    add_shards(job, 32)
    with pytest.raises(AssertionError, match="shards are left"):
        find_poison(job, set(range(32)))
    assert JobShard.objects.filter(job=job).exclude(storage_key="").count() == MAX_CRASHED_ROWS
    assert Job.objects.get(pk=job.pk).lost_attempts >= MAX_LOST_ATTEMPTS, "the job must be given up"
