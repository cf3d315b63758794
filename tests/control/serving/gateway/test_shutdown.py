"""When a server stops, the callers of its open requests get an error, and the tokens of open streams are counted."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from django.db.models import Sum

from control.asgi import application
from control.billing.usage.models import UsageRecord
from tests.control.serving.gateway.conftest import running_server
from tests.control.serving.gateway.test_gateway import chat, events_of, wait_for

NUM_STREAMS = 100


@pytest.mark.usefixtures("deployment")
def test_a_shutdown_ends_a_hundred_streams_with_an_error_event_and_counts_them(token: str) -> None:
    headers, begun = {"Authorization": f"Bearer {token}"}, threading.Semaphore(0)

    def read_stream(url: str) -> list[str]:
        with (
            httpx2.Client(headers=headers, trust_env=False, timeout=60) as client,
            client.stream("POST", f"{url}/chat/completions", json=chat("linger", stream=True)) as response,
        ):
            chunks = response.iter_raw()
            parts = [next(chunks)]
            while b"token1" not in parts[-1]:
                parts.append(next(chunks))
            begun.release()
            return events_of(httpx2.Response(200, content=b"".join([*parts, *chunks])))

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        with running_server() as url:
            readings = []
            for _ in range(NUM_STREAMS):  # one after the other: the fake engine accepts few connections at once
                readings.append(pool.submit(read_stream, url))
                assert begun.acquire(timeout=60)
        ends = [reading.result()[2:] for reading in readings]

    assert len(ends) == NUM_STREAMS
    assert all(len(end) == 1 and '"code":"server_draining"' in end[0] for end in ends), ends[0]
    sums = UsageRecord.objects.aggregate(Sum("requests"), Sum("output_tokens"))
    assert sums == {"requests__sum": NUM_STREAMS, "output_tokens__sum": 2 * NUM_STREAMS}


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_a_request_that_has_no_answer_at_a_shutdown_is_told_to_retry_and_is_not_counted(token: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    with ThreadPoolExecutor(1) as pool:
        with running_server() as url:
            request = chat("linger")
            waiting = pool.submit(
                httpx2.post, f"{url}/{path}", json=request, headers=headers, timeout=60, trust_env=False
            )
            wait_for(lambda: num_open() == 1)
        response = waiting.result()

    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert response.json()["error"]["code"] == "server_draining"
    kind = (response.json().get("type"), response.json()["error"]["type"])
    assert kind == (("error", "overloaded_error") if path == "messages" else (None, "server_error"))
    assert not UsageRecord.objects.exists()


def num_open() -> int:
    state = application._gateway._state
    return 0 if state is None else state.open_requests._num_open.total()
