"""Promise U1 of docs/reliability.md: response times of the API and the console.

Each response time is measured up to three times, because the machine may be busy.
"""

import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from tests.control.factories import make_job, make_key
from tests.control.operations.console.support import operator_client
from tests.control.world import World
from tests.workers.supervisor.conftest import stack as stack
from tests.workers.supervisor.live import LiveStack

NUM_REQUESTS, REQUESTS_PER_SECOND = 200, 50
NUM_JOBS, LIST_SECONDS, LIST_QUERIES = 100_000, 0.5, 15


def percentile_95(client: httpx2.Client, paths: list[str]) -> float:
    """The 95th percentile of the response times in seconds, measured from each request's scheduled start.

    Requests are scheduled at a fixed rate, whether or not earlier requests have been answered.
    """
    began = time.monotonic() + 0.1

    def send(number: int) -> float:
        scheduled = began + number / REQUESTS_PER_SECOND
        time.sleep(max(0.0, scheduled - time.monotonic()))
        response = client.get(paths[number % len(paths)])
        assert response.status_code == 200, response.text
        return time.monotonic() - scheduled

    with ThreadPoolExecutor(32) as pool:
        # With n=20, the last cut point is the 95th percentile.
        return statistics.quantiles(pool.map(send, range(NUM_REQUESTS)), n=20)[-1]


@pytest.fixture
def client_and_paths(stack: LiveStack) -> Iterator[tuple[httpx2.Client, list[str]]]:
    """A client of a live server, and paths of lists and of single objects."""
    world, (_, token) = World(stack.organization), make_key(stack.organization)
    kinds = {"files": "file", "batches": "batch", "jobs": "job", "pipelines": "pipeline", "deployments": "deployment"}
    paths = [f"/v1/{name}" for name in kinds]
    paths += [f"/v1/{name}/{world.id_of(f'{kind}_id')}" for name, kind in kinds.items()]
    headers = {"Authorization": f"Bearer {token}"}
    with stack.serve() as url, httpx2.Client(base_url=url, headers=headers, trust_env=False, timeout=30) as client:
        for path in paths:
            assert client.get(path).status_code == 200
        yield client, paths


@pytest.mark.soak
def test_at_fifty_reads_per_second_95_percent_of_responses_take_at_most_a_tenth_of_a_second(
    client_and_paths: tuple[httpx2.Client, list[str]],
) -> None:
    """The limit holds on an otherwise idle machine."""
    seconds: list[float] = []
    while len(seconds) < 3 and min(seconds, default=1.0) > 0.1:
        seconds.append(percentile_95(*client_and_paths))

    assert min(seconds) <= 0.1, seconds


def add_jobs(count: int) -> None:
    """Inserts copies of one job with a single statement."""
    template = make_job()
    names = [str(field.column) for field in Job._meta.concrete_fields]
    columns = ", ".join(names)
    copied = ", ".join("id || '-' || n" if name == "id" else name for name in names)
    numbers = f"WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"
    with connection.cursor() as cursor:
        rows = f"SELECT {copied} FROM jobs_job, numbers WHERE id = %s"
        insert = "INSERT INTO jobs_job"
        if connection.vendor == "sqlite":
            cursor.execute(f"{numbers} {insert} ({columns}) {rows}", [template.pk])
        else:
            cursor.execute(f"{insert} ({columns}) {numbers} {rows}", [template.pk])


def test_the_console_lists_a_hundred_thousand_jobs_quickly(organization: Organization) -> None:
    add_jobs(NUM_JOBS)
    client, path = operator_client(), reverse("admin:jobs_job_changelist")
    for query in ("", "?status__exact=queued", "?q=job", "?p=2"):
        seconds: list[float] = []
        while len(seconds) < 3 and min(seconds, default=1.0) > LIST_SECONDS:
            began = time.monotonic()
            with CaptureQueriesContext(connection) as queries:
                assert client.get(path + query).status_code == 200
            seconds.append(time.monotonic() - began)
            assert len(queries) <= LIST_QUERIES

        assert min(seconds) <= LIST_SECONDS, (query, seconds)
