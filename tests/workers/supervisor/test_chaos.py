"""Workers of a long batch are killed or frozen at random moments. The output must equal that of an undisturbed run."""

import random
import signal
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.utils import timezone

from control.core.sqlite.turns import Turn
from control.queue.jobs.models import Job, JobEvent, JobShard
from control.workflows.batches.models import Batch
from tests.workers.supervisor.live import LiveStack, is_frozen, kill_9
from tests.workers.supervisor.test_worker_process import check_output

LEASE_SECONDS, NUM_WORKERS = 1.0, 3
NUM_ROWS = 1_000


def with_short_leases(stack: LiveStack) -> LiveStack:
    """Sets the shortest possible leases, so that the test spends little time waiting for leases to expire."""
    stack.environment["SLIPSTREAM_LEASE_SECONDS"] = str(LEASE_SECONDS)
    stack.environment["SLIPSTREAM_RENEW_SECONDS"] = "0.25"
    stack.environment["SLIPSTREAM_STALL_SECONDS"] = "60"  # a child that waits for `allow` does not count as stalled
    return stack


def make_long_batch(stack: LiveStack) -> tuple[Batch, list[str], str]:
    """Returns the batch, its prompts, and the options of its child, which needs 5 ms per row and obeys `allow`."""
    contents = [f"prompt {number}" for number in range(NUM_ROWS)]
    return stack.make_batch(contents), contents, f"--row-seconds 0.005 --limit {stack.allow(0)}"


def random_moments(stack: LiveStack, job_id: str, count: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yields, `count` times at a random moment, the worker that has claimed the job and the fence of its claim.

    No moment is in an attempt that follows two attempts without progress: a third such attempt would fail the job.
    """
    draw = random.Random(count)
    for number in range(1, count + 1):
        # Another worker must be ready to take over, because the measured times must not include a worker's start.
        stack.wait_until(lambda: sum(map(stack.is_started, stack.workers)) >= 2, 60)
        stack.allow(NUM_ROWS * number // (count + 1))  # so that the batch cannot end before the last fault
        stack.holder_of(job_id)
        if stack.has_real_children:  # real children would otherwise always be killed while they load their model
            stack.wait_until(lambda: has_committed(job_id), 120)
        time.sleep(draw.uniform(0.0, 0.5))
        stack.wait_until(lambda: Job.objects.get(pk=job_id).stalled_attempts < 2, 40)
        yield stack.holder_of(job_id), Job.objects.get(pk=job_id).fence
    stack.allow(NUM_ROWS)


def has_committed(job_id: str) -> bool:
    """Whether the latest claim has committed a shard."""
    return JobShard.objects.filter(job_id=job_id, fence=Job.objects.get(pk=job_id).fence).exists()


def check_result(stack: LiveStack, batch: Batch, contents: list[str]) -> Job:
    job = stack.wait_for_job(batch.job_id, timeout_seconds=240)
    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    check_output(stack, batch, contents)
    assert (batch.total, batch.completed, batch.failed) == (NUM_ROWS, NUM_ROWS, 0)
    return job


@pytest.mark.parametrize(
    ("each_child", "num_kills"),
    [
        ("pretended child", 10),
        pytest.param("pretended child", 50, marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
        pytest.param("real child", 3, marks=pytest.mark.wide),
    ],
    indirect=["each_child"],
)
def test_a_batch_has_each_row_once_after_workers_are_killed_at_random_moments(
    each_child: LiveStack, num_kills: int, progress: Callable[[str], None]
) -> None:
    stack = each_child if each_child.has_real_children else with_short_leases(each_child)
    batch, contents, child = make_long_batch(stack)
    for _ in range(NUM_WORKERS):
        stack.start_worker(child=child)
    reclaim_seconds = []
    for holder, fence in random_moments(stack, batch.job_id, num_kills):
        killed_at = timezone.now()
        kill_9(holder)
        stack.start_worker(child=child)
        next_claim = JobEvent.objects.filter(job_id=batch.job_id, type="claimed", data__fence=fence + 1)
        stack.wait_until(next_claim.exists, 40)
        reclaim_seconds.append((next_claim.get().created_at - killed_at).total_seconds())
        progress(f"killed {len(reclaim_seconds)} of {num_kills} workers")

    job = check_result(stack, batch, contents)

    assert job.attempt > num_kills
    if stack.has_real_children:
        return  # real children slow down the claims that the following lines measure
    assert statistics.median(reclaim_seconds) <= LEASE_SECONDS + 1
    if num_kills > 10:  # the short test runs on busy machines, where a single claim may come later
        assert max(reclaim_seconds) <= LEASE_SECONDS + 2


def freeze(stack: LiveStack, worker: subprocess.Popen[bytes]) -> None:
    """Freezes the worker at a moment when it writes nothing. Its child continues and fills the pipe with shards.

    SQLite has one lock for all writers, and a frozen process that held or awaited this lock would delay all others.
    """

    def is_frozen_without_a_lock() -> bool:
        worker.send_signal(signal.SIGSTOP)
        stack.wait_until(lambda: is_frozen(worker.pid), 20)
        if is_writable(stack):
            return True
        worker.send_signal(signal.SIGCONT)
        return False

    stack.wait_until(is_frozen_without_a_lock, 120)  # on a busy machine the lock is rarely free


def is_writable(stack: LiveStack) -> bool:
    """Whether no process has or awaits the lock of SQLite; always true for PostgreSQL, which locks rows."""
    path = stack.data_dir / "slipstream.sqlite3"
    if not path.exists():
        return True
    turn = Turn(Path(f"{path}-turns"), max_wait_seconds=0.5)
    has_turn = turn.take()
    turn.give_back()
    if not has_turn:
        return False
    with closing(sqlite3.connect(path, timeout=0.5)) as probe:
        try:
            probe.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    return True


def test_workers_that_resume_after_their_lease_expired_change_nothing(stack: LiveStack) -> None:
    with_short_leases(stack)
    batch, contents, child = make_long_batch(stack)
    for _ in range(NUM_WORKERS):
        stack.start_worker(child=child)
    for zombie, fence in random_moments(stack, batch.job_id, 10):
        freeze(stack, zombie)
        stack.wait_until(Job.objects.filter(pk=batch.job_id, fence__gt=fence).exists, 40)
        zombie.send_signal(signal.SIGCONT)

    check_result(stack, batch, contents)

    stack.wait_until(lambda: stack.count_logged("lease lost") >= 10, 10)
