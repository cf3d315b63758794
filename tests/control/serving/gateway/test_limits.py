"""The limits on an organization's requests in progress: on their number, and on the cost that they may cause."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from pytest_django import Settings

from control.billing.spending.models import SpendCap, SpendReservation
from control.billing.usage.models import UsageRecord
from control.billing.usage.services import price_set
from control.core.observability import metrics
from control.core.settings.config import get_config
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from tests.control.serving.gateway.test_gateway import chat, wait_for

USD = 10**9


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        yield client


def open_stream(client: httpx2.Client, opened: ExitStack, **values: Any) -> None:
    """Opens a stream that lasts until `opened` ends."""
    body = chat("linger", stream=True, **values)
    response = opened.enter_context(client.stream("POST", "/chat/completions", json=body))
    chunks = response.iter_text()
    opened.callback(chunks.close)  # type: ignore[attr-defined]  # a generator; without it, the stream would end here
    assert "token0" in next(chunks)


@pytest.mark.usefixtures("deployment")
def test_an_organization_has_a_limited_number_of_open_streams(client: httpx2.Client, settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"max_open_completions": 2})
    with ExitStack() as opened:
        for _ in range(2):
            open_stream(client, opened)

        refused = client.post("/chat/completions", json=chat("hello", stream=True))

        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "too_many_streams"
        assert "2 requests to models in progress" in refused.json()["error"]["message"]
    wait_for(lambda: client.post("/chat/completions", json=chat("hello")).status_code == 200)


@pytest.mark.usefixtures("deployment")
def test_refused_and_failed_requests_no_longer_count_as_open(client: httpx2.Client, settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"max_open_completions": 1})
    for content, status in (("refuse", 400), ("hello", 200), ("hang up", 502), ("hello", 200)):
        stream = content != "hello"
        assert client.post("/chat/completions", json=chat(content, stream=stream)).status_code == status
    assert client.post("/chat/completions", json=chat("hello", model="unknown")).status_code == 404
    assert client.post("/chat/completions", content=b"{").status_code == 400
    assert client.post("/chat/completions", json=chat("hello")).status_code == 200


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_no_longer_counts_once_its_caller_has_disconnected(
    client: httpx2.Client, settings: Settings, stream: bool
) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"max_open_completions": 1})
    with pytest.raises(httpx2.ReadTimeout):
        client.post("/chat/completions", json=chat("linger", stream=stream), timeout=0.5)

    wait_for(lambda: client.post("/chat/completions", json=chat("hello")).status_code == 200)


@pytest.fixture
def cap(caller: Organization, deployment: Deployment) -> SpendCap:
    """A cap of 10 USD. An output token of the deployment's model costs 1 USD, and all other tokens are free."""
    price_set(base_model_id="", input_nanousd=0, output_nanousd=0)
    price_set(base_model_id=deployment.base_model_id, input_nanousd=0, output_nanousd=USD)
    return SpendCap.objects.create(organization=caller, nanousd=10 * USD)


@pytest.mark.usefixtures("deployment", "cap")
def test_concurrent_requests_reserve_their_max_tokens_under_a_spend_cap(client: httpx2.Client) -> None:
    with ExitStack() as opened:
        open_stream(client, opened, max_tokens=6)

        refused = client.post("/chat/completions", json=chat("hello", max_tokens=5))
        admitted = client.post("/chat/completions", json=chat("hello", max_tokens=4))

        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "spend_cap_reserved")
        assert refused.headers["retry-after"] == "1"
        assert admitted.status_code == 200

    wait_for(lambda: not SpendReservation.objects.exists())
    assert sum(UsageRecord.objects.values_list("output_tokens", flat=True)) == 4, "two tokens of each request"
    assert client.post("/chat/completions", json=chat("hello", max_tokens=6)).status_code == 200


@pytest.mark.usefixtures("deployment", "cap")
def test_a_request_that_cost_more_than_it_reserved_is_reported(
    client: httpx2.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The fake engine answers with two tokens, whatever `max_tokens` says."""

    def num_exceeded() -> float:
        return float(metrics.reservations_exceeded._value.get())

    before = num_exceeded()
    assert client.post("/chat/completions", json=chat("hello", max_tokens=2)).status_code == 200
    assert num_exceeded() == before

    assert client.post("/chat/completions", json=chat("hello", max_tokens=1)).status_code == 200

    assert num_exceeded() == before + 1
    assert "cost more than it reserved" in caplog.text


@pytest.mark.usefixtures("deployment", "cap")
@pytest.mark.parametrize(("content", "status"), [("refuse", 400), ("hang up", 502)])
def test_a_request_without_an_answer_releases_its_reservation(client: httpx2.Client, content: str, status: int) -> None:
    body = chat(content, stream=True, max_tokens=10)
    assert client.post("/chat/completions", json=body).status_code == status

    wait_for(lambda: not SpendReservation.objects.exists())
    assert client.post("/chat/completions", json=chat("hello", max_tokens=10)).status_code == 200


@pytest.mark.usefixtures("deployment", "cap")
def test_a_request_that_does_not_fit_under_a_spend_cap_is_told_to_lower_max_tokens(client: httpx2.Client) -> None:
    refused = client.post("/chat/completions", json=chat("hello"))

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "spend_cap_reached")
    assert refused.headers["x-should-retry"] == "false"
    assert "a lower max_tokens" in refused.json()["error"]["message"]


def test_the_log_names_the_organization_of_a_refused_request(
    client: httpx2.Client, caller: Organization, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"requests_per_minute": 1})
    statuses = [client.post("/chat/completions", json=chat("hello")).status_code for _ in range(2)]

    assert statuses[1] == 429
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    assert [line["organization_id"] for line in lines if line.get("status") == 429] == [caller.pk]
