"""Workers and the API while their PostgreSQL server crashes and is restarted."""

import signal
import time
from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection

from control.queue.jobs.models import Job, JobEvent
from control.workflows.batches.models import Batch
from tests.command_lines import CommandLines
from tests.control.factories import client_of
from tests.databases import needs_postgres, postgres_server
from tests.workers.supervisor.live import LiveStack, is_frozen, kill_9
from tests.workers.supervisor.test_worker_process import expected_output, output_of

pytestmark = pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])


@pytest.fixture(autouse=True)
def _server_runs_afterwards(database_kind: str) -> Iterator[None]:
    """Starts the server after a test that failed before it restarted the server."""
    yield
    if not postgres_server()._accepts_connections():
        postgres_server().start()


def restart(after_seconds: float = 0.0) -> None:
    postgres_server().crash()
    time.sleep(after_seconds)
    postgres_server().start()
    connection.close()


def test_a_batch_completes_after_restarts_of_the_database_and_the_death_of_a_worker(stack: LiveStack) -> None:
    contents = [f"prompt {number}" for number in range(60)]
    batch = stack.make_batch(contents)
    worker = stack.start_worker(child="--row-seconds 0.05")
    for crash in range(1, 6):
        stack.wait_for_committed_shards(batch.job_id, crash)
        if crash == 3:
            kill_9(worker)
            stack.start_worker(child="--row-seconds 0.05")
        restart(0.3)

    job = stack.wait_for_job(batch.job_id, timeout_seconds=60)

    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    assert output_of(batch) == expected_output(job.pk, contents)
    fences = [event.data["fence"] for event in JobEvent.objects.filter(job=job, type="claimed").order_by("seq")]
    assert fences == sorted(set(fences))  # every claim has a higher fence than the previous one


def test_another_worker_takes_over_from_a_worker_frozen_in_a_transaction(stack: LiveStack) -> None:
    """The frozen transaction has locked the job's row. The test locks a table that the transaction needs next, so that
    the transaction waits at this point."""
    stack.environment |= {"SLIPSTREAM_LEASE_SECONDS": "1", "SLIPSTREAM_RENEW_SECONDS": "0.25"}
    url = postgres_server().url(str(connection.settings_dict["NAME"]), "postgres")
    waits_for_table = "wait_event_type = 'Lock' AND query LIKE 'INSERT INTO \"jobs_jobevent\"%'"
    waiting_workers = f"SELECT 1 FROM pg_stat_activity WHERE {waits_for_table}"
    batch = stack.make_batch(["prompt"])
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watcher:
        holder.execute("LOCK TABLE jobs_jobevent IN EXCLUSIVE MODE")
        frozen = stack.start_worker()
        stack.wait_until(lambda: watcher.execute(waiting_workers).fetchone() is not None, 20)
        frozen.send_signal(signal.SIGSTOP)
        stack.wait_until(lambda: is_frozen(frozen.pid), 20)

    stack.start_worker()

    assert stack.wait_for_job(batch.job_id).status == Job.Status.SUCCEEDED
    frozen.send_signal(signal.SIGCONT)


def test_the_api_answers_503_while_its_database_is_down_and_recovers_afterwards(stack: LiveStack) -> None:
    client = client_of(stack.organization)
    assert client.get("/v1/jobs").status_code == 200
    postgres_server().crash()

    responses = [client.get("/v1/jobs"), client.post("/v1/chat/completions", {"model": "m"}), client.get("/health")]

    for response in responses:
        assert (response.status_code, response.json()["error"]["code"]) == (503, "database_unavailable")
        assert response.headers["Retry-After"] == "1"
        assert "psycopg" not in response.content.decode()
    postgres_server().start()
    connection.close()  # Django closes broken connections at the end of each request
    assert client.get("/v1/jobs").status_code == 200
    assert client.get("/health").json() == {"status": "ok"}


def test_no_process_has_the_password_of_the_database_among_its_arguments(stack: LiveStack) -> None:
    password = "password-of-the-database"
    url = stack.environment["SLIPSTREAM_DATABASE_URL"].replace("@", f":{password}@", 1)
    stack.environment["SLIPSTREAM_DATABASE_URL"] = url
    with CommandLines() as commands, stack.serve():
        batch = stack.make_batch(["prompt"] * 20)
        stack.start_worker(child="--row-seconds 0.05")
        job = stack.wait_for_job(batch.job_id)

    assert job.status == Job.Status.SUCCEEDED
    for program in ("uvicorn control.asgi", "workers.supervisor", "fake_child.py"):
        assert commands.of(program), f"{program} did not run"
    assert commands.of(password) == []
