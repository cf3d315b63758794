"""Idempotency keys with real servers: concurrent requests, and a server that dies before it sends the response."""

from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest

from control.queue.jobs.models import Job
from control.workflows.batches.models import Batch
from tests.control.factories import chat_row, make_file, make_key
from tests.control.tenants.idempotency.dying_app import DIE_HEADER
from tests.workers.supervisor.live import LiveStack, free_port

NUM_CALLERS = 50
DYING_APP = "tests.control.tenants.idempotency.dying_app:application"


class Caller:
    """Sends the same request at each call."""

    def __init__(self, stack: LiveStack) -> None:
        _, token = make_key(stack.organization)
        file = make_file(stack.organization, [chat_row()])
        self.headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "once"}
        self.body = {"input_file_id": file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h"}

    def post(self, base_url: str, **headers: str) -> httpx2.Response:
        return httpx2.post(
            f"{base_url}/v1/batches", json=self.body, headers={**self.headers, **headers}, timeout=30, trust_env=False
        )


def test_fifty_concurrent_identical_requests_create_one_job(stack: LiveStack) -> None:
    caller = Caller(stack)
    with stack.serve() as url:
        with ThreadPoolExecutor(NUM_CALLERS) as pool:
            responses = list(pool.map(lambda _: caller.post(url), range(NUM_CALLERS)))
        responses.append(caller.post(url))

    assert {response.status_code for response in responses} <= {200, 409}
    assert all(response.headers["Retry-After"] == "1" for response in responses if response.status_code == 409)
    assert len({response.content for response in responses if response.status_code == 200}) == 1
    assert responses[-1].headers["Idempotency-Replayed"] == "true"
    assert (Batch.objects.count(), Job.objects.count()) == (1, 1)


def test_a_retry_after_a_server_died_before_its_response_creates_no_second_job(stack: LiveStack) -> None:
    caller = Caller(stack)
    port = free_port()
    with stack.serve(DYING_APP, port=port) as url, pytest.raises(httpx2.TransportError):
        caller.post(url, **{DIE_HEADER.decode(): "1"})
    made = Batch.objects.get()

    with stack.serve(port=port) as url:
        response = caller.post(url)

    assert response.json()["id"] == made.pk
    assert response.headers["Idempotency-Replayed"] == "true"
    assert (Batch.objects.count(), Job.objects.count()) == (1, 1)
