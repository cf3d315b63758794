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


def test_of_fifty_identical_requests_at_once_one_makes_a_job(stack: LiveStack) -> None:
    caller = Caller(stack)
    with stack.serve() as url:
        with ThreadPoolExecutor(NUM_CALLERS) as pool:
            answers = list(pool.map(lambda _: caller.post(url), range(NUM_CALLERS)))
        answers.append(caller.post(url))

    assert {answer.status_code for answer in answers} <= {200, 409}
    assert all(answer.headers["Retry-After"] == "1" for answer in answers if answer.status_code == 409)
    assert len({answer.content for answer in answers if answer.status_code == 200}) == 1
    assert answers[-1].headers["Idempotency-Replayed"] == "true"
    assert (Batch.objects.count(), Job.objects.count()) == (1, 1)


def test_a_server_that_dies_before_it_answers_has_still_made_one_job(stack: LiveStack) -> None:
    caller = Caller(stack)
    port = free_port()
    with stack.serve(DYING_APP, port=port) as url, pytest.raises(httpx2.TransportError):
        caller.post(url, **{DIE_HEADER.decode(): "1"})
    made = Batch.objects.get()

    with stack.serve(port=port) as url:
        answer = caller.post(url)

    assert answer.json()["id"] == made.pk
    assert answer.headers["Idempotency-Replayed"] == "true"
    assert (Batch.objects.count(), Job.objects.count()) == (1, 1)
