"""Jobs that kill workers and children, and their effect on other jobs."""

import os
import signal
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from control.queue.jobs.failures import MAX_LOST_ATTEMPTS, MAX_STALLED_ATTEMPTS
from control.queue.jobs.models import Job, JobEvent
from control.workflows.batches.models import Batch
from tests.workers.supervisor.live import POISON_CHILD, LiveStack, children_of
from tests.workers.supervisor.test_worker_process import check_output, errors_of, expected_output, output_of

ROWS_EACH = 10
STALL_SECONDS = 2


def num_runs(stack: LiveStack, job_id: str) -> int:
    """Returns the number of attempts that started a child. Each child has a log file."""
    return len(list((stack.data_dir / "logs" / "jobs").glob(f"{job_id}.*.log")))


def check_poison(stack: LiveStack, batch: Batch, *, num_attempts: int) -> None:
    job = Job.objects.get(pk=batch.job_id)
    batch.refresh_from_db()
    assert job.error is not None
    assert (job.status, batch.status) == (Job.Status.FAILED, Batch.Status.FAILED)
    assert (job.error["class"], job.error["code"]) == ("infra", "worker_crash_loop")
    assert num_runs(stack, job.pk) == num_attempts
    assert job.finished_at is not None
    assert errors_of(batch) == [("row-0", "batch_failed")]


def busy_seconds(job_id: str) -> float:
    """Returns the time that workers spent on the job, from each claim to its result."""
    events = list(JobEvent.objects.filter(job_id=job_id, type__in=("claimed", "retried", "failed")).order_by("seq"))
    ends = zip(events[::2], events[1::2], strict=True)
    return sum((ended.created_at - claimed.created_at).total_seconds() for claimed, ended in ends)


@pytest.mark.parametrize(
    ("each_child", "num_others"),
    [("pretended child", 16), pytest.param("real child", 2, marks=pytest.mark.wide)],
    indirect=["each_child"],
)
def test_a_job_that_kills_every_child_fails_after_three_attempts_and_hardly_delays_other_jobs(
    each_child: LiveStack, num_others: int
) -> None:
    stack = each_child
    stack.environment["SLIPSTREAM_BACKOFF_SECONDS"] = "1"
    poison = stack.make_batch(["die at once"])
    contents = [f"prompt {number}" for number in range(ROWS_EACH)]
    others = [stack.make_batch(contents) for _ in range(num_others)]
    started = time.monotonic()
    stack.start_worker(child="--row-seconds 0.03", child_program=None if stack.has_real_children else POISON_CHILD)

    stack.wait_for_jobs([batch.job_id for batch in (poison, *others)], timeout_seconds=200)

    check_poison(stack, poison, num_attempts=MAX_STALLED_ATTEMPTS)
    for batch in others:
        batch.refresh_from_db()
        assert Job.objects.get(pk=batch.job_id).attempt == 1
        assert check_output(stack, batch, contents) == list(range(ROWS_EACH))
    if stack.has_real_children:
        return  # real children take seconds to start, which is most of the measured time
    job = Job.objects.get(pk=poison.job_id)
    assert job.finished_at is not None
    assert job.finished_at - job.created_at < timedelta(seconds=60)
    assert busy_seconds(poison.job_id) <= 0.2 * (time.monotonic() - started), "the job took over a fifth of the time"


def test_a_job_that_kills_its_supervisor_fails_after_eight_attempts(stack: LiveStack) -> None:
    stack.environment["SLIPSTREAM_LEASE_SECONDS"] = "1"
    poison = stack.make_batch(["kill the supervisor"])
    for runs in range(1, MAX_LOST_ATTEMPTS + 1):
        worker = stack.start_worker(child_program=POISON_CHILD)
        stack.wait_until(lambda worker=worker: worker.poll() is not None, 40)  # type: ignore[misc]
        assert num_runs(stack, poison.job_id) == runs
    healthy = stack.make_batch(["prompt"])
    survivor = stack.start_worker(child_program=POISON_CHILD)

    stack.wait_for_jobs([poison.job_id, healthy.job_id])

    check_poison(stack, poison, num_attempts=MAX_LOST_ATTEMPTS)
    assert Job.objects.get(pk=healthy.job_id).status == Job.Status.SUCCEEDED
    assert survivor.poll() is None


def test_a_frozen_child_is_killed_within_five_seconds_of_the_stall_limit(stack: LiveStack) -> None:
    """The supervisor of the frozen child is alive and renews the lease, so the lease does not expire."""
    stack.environment["SLIPSTREAM_STALL_SECONDS"] = str(STALL_SECONDS)
    contents = [f"prompt {number}" for number in range(24)]
    batch = stack.make_batch(contents)
    stack.start_worker(child="--row-seconds 0.1")
    stack.wait_for_committed_shards(batch.job_id, 1)

    frozen_at = timezone.now()
    for pid in children_of(stack.data_dir):
        os.kill(pid, signal.SIGSTOP)
    retried = JobEvent.objects.filter(job_id=batch.job_id, type="retried", data__code="no_progress")
    stack.wait_until(retried.exists, 30)

    delay = retried.get().created_at - frozen_at
    assert delay <= timedelta(seconds=STALL_SECONDS + 5)
    job = stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert (job.status, job.attempt) == (Job.Status.SUCCEEDED, 2)
    assert output_of(batch) == expected_output(job.pk, contents)
