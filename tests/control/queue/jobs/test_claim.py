"""Leases and fences decide which worker may run a job, and whose writes are accepted.

Each claim of a job gets a new number, its fence. A write with an older fence is refused. tests/workers/supervisor
tests claims that race with each other, because a race needs several connections to a database.
"""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db.models.functions import Now

from control.queue.jobs.failures import KILLED, MAX_LOST_ATTEMPTS, Failure
from control.queue.jobs.models import Job, JobEvent, Worker
from control.queue.jobs.selectors import jobs_due
from control.queue.jobs.services import (
    job_cancel,
    job_claim,
    job_commit_checkpoint,
    job_end_cancelled,
    job_fail,
    job_metrics,
    job_progress,
    job_release,
    job_renew,
    job_succeed,
    worker_beat,
)
from control.queue.jobs.shards import ShardRows, job_blame_shards, job_commit_shard
from control.queue.jobs.state import Claim, LeaseLost
from tests.control.queue.jobs.helpers import INFRA, add_shards, claim, end_backoff, expire_lease, snapshot, submit
from workers.contracts import FailureClass

pytestmark = pytest.mark.django_db

ROWS = ShardRows(completed=1, failed=0, usage={"total_tokens": 3})
WRITES: dict[str, Callable[[Claim], object]] = {
    "renew": lambda claimed: job_renew(claim=claimed),
    "progress": lambda claimed: job_progress(claim=claimed, done=1, total=2, unit="rows"),
    "metrics": lambda claimed: job_metrics(claim=claimed, metrics={"loss": 1.0}),
    "checkpoint": lambda claimed: job_commit_checkpoint(claim=claimed, storage_prefix="p", step=1),
    "shard": lambda claimed: job_commit_shard(claim=claimed, shard_no=0, storage_key="k", rows=ROWS),
    "blame": lambda claimed: job_blame_shards(claim=claimed, shard_nos=[0]),
    "succeed": lambda claimed: job_succeed(claim=claimed, result={}),
    "fail": lambda claimed: job_fail(claim=claimed, failure=INFRA),
    "cancelled": lambda claimed: job_end_cancelled(claim=claimed),
    "release": lambda claimed: job_release(claim=claimed),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_with_an_old_fence_changes_nothing(write: str) -> None:
    job = submit()
    add_shards(job, 4)
    outdated_claim = claim(job)
    expire_lease(job)
    claim(job, "another worker")
    before = snapshot(job)

    with pytest.raises(LeaseLost):
        WRITES[write](outdated_claim)

    assert snapshot(job) == before


@pytest.mark.parametrize("write", WRITES)
def test_a_write_after_the_end_of_the_job_changes_nothing(write: str) -> None:
    job = submit()
    add_shards(job, 4)
    current_claim = claim(job)
    job_succeed(claim=current_claim, result={})
    before = snapshot(job)

    with pytest.raises(LeaseLost):
        WRITES[write](current_claim)

    assert snapshot(job) == before


def test_a_running_job_cannot_be_claimed_until_its_lease_expires() -> None:
    job = submit()
    claim(job)
    assert job_claim(job_id=job.pk, worker="another") is None
    expire_lease(job)
    assert claim(job, "another").fence == 2


def test_a_renewed_lease_prevents_other_claims() -> None:
    job = submit()
    current_claim = claim(job)
    expire_lease(job)
    job_renew(claim=current_claim)
    assert job_claim(job_id=job.pk, worker="another") is None


def test_a_job_in_back_off_cannot_be_claimed() -> None:
    job = submit()
    Job.objects.filter(pk=job.pk).update(not_before=Now() + timedelta(seconds=60))
    assert job_claim(job_id=job.pk, worker="worker") is None
    end_backoff(job)
    claim(job)


@pytest.mark.parametrize("status", [Job.Status.SUCCEEDED, Job.Status.FAILED, Job.Status.CANCELLED])
def test_a_job_that_has_ended_or_does_not_exist_cannot_be_claimed(status: str) -> None:
    job = submit()
    Job.objects.filter(pk=job.pk).update(status=status)
    assert job_claim(job_id=job.pk, worker="worker") is None
    assert job_claim(job_id="job_unknown", worker="worker") is None


def test_each_transition_writes_one_event_in_order() -> None:
    job = submit()
    current_claim = claim(job)
    job_release(claim=current_claim)
    current_claim = claim(job)
    job_cancel(job=job)
    job_end_cancelled(claim=current_claim)
    events = list(JobEvent.objects.filter(job=job).values_list("seq", "type"))
    types = ["queued", "claimed", "released", "claimed", "cancel_requested", "cancelled"]
    assert events == list(enumerate(types, start=1))


def test_a_repeated_cancellation_is_recorded_once_and_makes_a_job_in_back_off_due() -> None:
    job = submit()
    Job.objects.filter(pk=job.pk).update(not_before=Now() + timedelta(seconds=60))
    assert [job_cancel(job=job), job_cancel(job=job)] == [True, False]
    assert list(jobs_due()) == [job]


def test_a_renewal_reports_a_requested_cancellation() -> None:
    job = submit()
    current_claim = claim(job)
    assert not job_renew(claim=current_claim)
    job_cancel(job=job)
    assert job_renew(claim=current_claim)


def test_a_failed_job_is_due_without_a_delay_if_its_cancellation_was_requested() -> None:
    """The cancellation was requested while a worker ran the job, and the worker has not noticed the request yet."""
    job = submit()
    current_claim = claim(job)
    job_cancel(job=job)

    job_fail(claim=current_claim, failure=INFRA)

    assert jobs_due().filter(pk=job.pk).exists()


def test_rows_of_workers_that_died_long_ago_are_deleted() -> None:
    for name in ("dead", "alive"):
        worker_beat(worker=name, role="jobs")
    Worker.objects.filter(pk="dead").update(heartbeat_at=Now() - timedelta(days=2))

    worker_beat(worker="new", role="jobs")

    assert set(Worker.objects.values_list("pk", flat=True)) == {"alive", "new"}


def test_a_job_that_has_ended_cannot_be_cancelled() -> None:
    job = submit()
    job_succeed(claim=claim(job), result={})
    assert not job_cancel(job=job)
    assert Job.objects.get(pk=job.pk).cancel_requested_at is None


def test_the_ninth_claim_is_marked_as_exhausted_if_all_earlier_attempts_lost_their_machine_without_progress() -> None:
    job = submit()
    claims = []
    for _ in range(MAX_LOST_ATTEMPTS + 1):
        claims.append(claim(job))
        expire_lease(job)
    assert [current_claim.is_exhausted for current_claim in claims] == [False] * MAX_LOST_ATTEMPTS + [True]


def test_a_job_survives_lost_attempts_that_alternate_with_two_crashes_of_its_code() -> None:
    """Lost attempts and crashes have separate limits, so preempted machines use up none of the attempts for crashes."""
    job, killed = submit(), Failure(failure_class=FailureClass.INFRA, code=KILLED, message="SIGKILL")
    for failure in (killed, INFRA, killed, killed, INFRA, killed):
        assert not job_fail(claim=claim(job), failure=failure)
        end_backoff(job)
    job.refresh_from_db()
    assert (job.stalled_attempts, job.lost_attempts) == (2, 4)

    assert job_fail(claim=claim(job), failure=INFRA)


def test_a_killed_job_fails_after_eight_attempts_without_progress() -> None:
    job, killed = submit(), Failure(failure_class=FailureClass.INFRA, code=KILLED, message="SIGKILL")
    ends = []
    for _ in range(MAX_LOST_ATTEMPTS):
        ends.append(job_fail(claim=claim(job), failure=killed))
        end_backoff(job)
    job.refresh_from_db()
    assert ends == [False] * (MAX_LOST_ATTEMPTS - 1) + [True]
    assert job.error is not None
    assert job.error["code"] == "worker_crash_loop"


def test_progress_resets_the_count_of_stalled_attempts() -> None:
    job = submit()
    for _ in range(MAX_LOST_ATTEMPTS):
        current_claim = claim(job)
        expire_lease(job)
    job_commit_checkpoint(claim=current_claim, storage_prefix="checkpoints/1", step=1)
    expire_lease(job)
    for _ in range(MAX_LOST_ATTEMPTS):
        assert not claim(job).is_exhausted
        expire_lease(job)


def test_a_released_attempt_does_not_count_as_stalled() -> None:
    job = submit()
    for _ in range(6):
        job_release(claim=claim(job))
    job.refresh_from_db()
    assert (job.status, job.stalled_attempts, job.attempt) == (Job.Status.QUEUED, 0, 6)


def test_infra_failures_are_retried_while_there_is_progress() -> None:
    job = submit()
    add_shards(job, *([1] * 5))
    for number in range(5):
        current_claim = claim(job)
        job_commit_shard(claim=current_claim, shard_no=number, storage_key=f"k{number}", rows=ROWS)
        assert not job_fail(claim=current_claim, failure=INFRA)
        end_backoff(job)
    for is_final in (False, False, True):
        assert job_fail(claim=claim(job), failure=INFRA) is is_final
        end_backoff(job)
    job.refresh_from_db()
    assert job.error is not None
    assert job.error["code"] == "worker_crash_loop"


@pytest.mark.parametrize(("num_rows", "expected"), [(256, 128), (5, 2), (1, 1), (None, None)])
def test_a_job_out_of_memory_is_retried_once_with_half_the_rows_that_it_ran(
    num_rows: int | None, expected: int | None
) -> None:
    job = submit()
    failure = Failure(
        failure_class=FailureClass.OUT_OF_MEMORY, code="out_of_memory", message="Too big.", num_rows=num_rows
    )
    assert not job_fail(claim=claim(job), failure=failure)
    job.refresh_from_db()
    assert job.params.get("max_batch_size") == expected
    end_backoff(job)
    assert job_fail(claim=claim(job), failure=failure)
