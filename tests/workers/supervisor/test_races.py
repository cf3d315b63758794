"""Races between threads that claim the same job, on SQLite and PostgreSQL."""

import threading

import pytest
from django.db import connection

from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim, job_submit
from control.queue.jobs.state import Claim
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
