"""Races between threads, on both databases."""

import threading

import pytest
from django.db import connection

from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim, job_submit
from control.queue.jobs.state import Claim
from tests.databases import needs_postgres
from tests.workers.supervisor.live import LiveStack


@pytest.mark.parametrize("database_kind", ["sqlite", needs_postgres("postgresql")])
def test_of_several_workers_that_claim_a_job_at_once_one_gets_it(stack: LiveStack) -> None:
    job = job_submit(organization=stack.organization, kind=Job.Kind.BATCH, params={})
    start, won = threading.Barrier(4), list[Claim]()

    def race(name: str) -> None:
        start.wait()
        try:
            if taken := job_claim(job_id=job.pk, worker=name):
                won.append(taken)
        finally:
            connection.close()

    threads = [threading.Thread(target=race, args=(f"worker {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    job.refresh_from_db()
    assert [taken.worker for taken in won] == [job.worker]
    assert (job.fence, job.attempt) == (1, 1)
