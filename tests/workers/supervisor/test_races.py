"""Races between threads, on both databases, and the order in which PostgreSQL's row locks are taken."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from control.billing.usage.services import usage_add
from control.core.api.errors import ApiError
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim, job_claim_next, job_submit
from control.queue.jobs.shards import ShardRows
from control.queue.jobs.state import Claim
from control.tenants.row_security.scope import Across, across_tenants
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel, batch_commit_shard, batch_resume, batch_validate
from tests.control.factories import make_organization
from tests.databases import needs_postgres
from tests.workers.supervisor.live import LiveStack


@pytest.mark.parametrize("database_kind", ["sqlite", needs_postgres("postgresql")])
def test_if_several_workers_claim_a_job_at_once_exactly_one_gets_it(stack: LiveStack) -> None:
    job = job_submit(organization=stack.organization, kind=Job.Kind.BATCH, params={})
    start, claims = threading.Barrier(4), list[Claim]()

    def race(name: str) -> None:
        start.wait()
        try:
            if claim := job_claim(job_id=job.pk, worker=name):
                claims.append(claim)
        finally:
            connection.close()

    threads = [threading.Thread(target=race, args=(f"worker {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    job.refresh_from_db()
    assert [claim.worker for claim in claims] == [job.worker]
    assert (job.fence, job.attempt) == (1, 1)


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_a_batch_can_be_cancelled_while_one_of_its_shards_is_committed(
    stack: LiveStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit has locked the job and is about to lock the batch when the cancellation begins."""
    batch = stack.make_batch(["a", "b"])
    batch_validate(batch=batch)
    claim = job_claim(job_id=batch.job_id, worker="worker")
    assert claim is not None
    cancellation: list[threading.Thread] = []

    def add_usage_when_the_cancellation_waits(**values: Any) -> Any:
        cancellation.append(in_thread(lambda: batch_cancel(batch=batch)))
        stack.wait_until(lambda: num_waiting_for_locks() == 1, 20)
        return usage_add(**values)

    monkeypatch.setattr("control.workflows.batches.services.usage_add", add_usage_when_the_cancellation_waits)
    rows = ShardRows(completed=2, failed=0, usage={"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})

    is_committed = batch_commit_shard(batch=batch, claim=claim, shard_no=0, storage_key="shards/0.1.jsonl", rows=rows)

    cancellation[0].join()
    batch.refresh_from_db()
    assert (is_committed, batch.status) == (True, "cancelling")
    assert batch.job.cancel_requested_at is not None


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_a_worker_claims_the_next_organizations_job_if_the_first_organizations_only_job_is_locked(
    stack: LiveStack,
) -> None:
    first, second = (job_submit(organization=make_organization(), kind=Job.Kind.BATCH, params={}) for _ in range(2))
    is_locked, may_end = threading.Event(), threading.Event()

    def lock_first_job() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=min(first, second, key=lambda job: job.organization_id).pk)
            is_locked.set()
            may_end.wait(20)

    other_worker = in_thread(lock_first_job)
    assert is_locked.wait(20)
    claim = job_claim_next(worker="worker")
    may_end.set()
    other_worker.join()

    assert claim is not None
    assert claim.job_id == max(first, second, key=lambda job: job.organization_id).pk


@pytest.mark.parametrize("database_kind", ["sqlite", needs_postgres("postgresql")])
def test_of_several_concurrent_resumptions_of_a_batch_exactly_one_is_accepted(stack: LiveStack) -> None:
    batch = stack.make_batch(["a", "b"])
    batch_validate(batch=batch)
    batch_assemble(batch=batch, final="failed")
    start, outcomes = threading.Barrier(4), list[str]()

    def resume() -> None:
        start.wait()
        try:
            outcomes.append(batch_resume(batch=Batch.objects.get(pk=batch.pk)).status)
        except ApiError as error:
            outcomes.append(str(error.code))

    for thread in [in_thread(resume) for _ in range(4)]:
        thread.join()

    assert sorted(outcomes) == [*["batch_already_resumed"] * 3, "validating"]
    assert batch.resumptions.count() == 1


def in_thread(work: Callable[[], Any]) -> threading.Thread:
    def run() -> None:
        try:
            with across_tenants(Across.COMMAND):
                work()
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def num_waiting_for_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])
