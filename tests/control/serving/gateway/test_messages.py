"""/v1/messages through the gateway: usage of complete and interrupted answers, events, errors, keys and spend caps."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import httpx2
import pytest
from django.db import OperationalError

from control.billing.spending.models import SpendCap
from control.billing.usage.models import UsageRecord
from control.billing.usage.services import price_set
from control.serving.gateway import serving
from control.serving.gateway.completion_request import read
from control.serving.gateway.costs import cost_bound
from control.serving.gateway.wire import WIRES
from control.tenants.accounts.models import Organization
from tests.control.serving.gateway.test_costs import ROUTE
from tests.control.serving.gateway.test_meter import USAGE, wait_for_usage

MESSAGES = "/v1/messages"
USD = 10**9  # nanousd


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=base_url, headers={"x-api-key": token}, trust_env=False) as client:
        yield client


def body(content: Any = "hello", **values: Any) -> dict[str, Any]:
    return {"model": "fast", "messages": [{"role": "user", "content": content}], "max_tokens": 5, **values}


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("stream", [False, True])
def test_a_message_is_counted_with_its_cached_tokens_and_its_body_is_sent_unchanged(
    client: httpx2.Client, stream: bool
) -> None:
    response = client.post("/messages", json=body(stream=stream))

    assert response.status_code == 200
    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]
    if stream:
        events = response.text.removesuffix("\n\n").split("\n\n")
        kinds = [event.partition("\n")[0].removeprefix("event: ") for event in events]
        assert kinds == ["message_start", "content_block_delta", "content_block_delta", "message_stop"]
        assert "usage" not in response.text
    else:
        assert (response.json()["echo"], response.json()["path"]) == (body(stream=False), MESSAGES)


@pytest.mark.usefixtures("deployment")
def test_a_stream_whose_engine_dies_raises_an_exception_in_anthropics_client_and_is_counted(
    base_url: str, token: str
) -> None:
    url = base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key=token, max_retries=0) as client:
        stream = client.messages.create(**body("die", stream=True))
        with pytest.raises(anthropic.APIStatusError) as caught:
            list(stream)

    assert isinstance(caught.value.body, dict)
    error = caught.value.body["error"]
    assert (error["type"], error["code"]) == ("api_error", "upstream_terminated")
    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]


@pytest.mark.usefixtures("deployment")
def test_a_stream_is_counted_up_to_the_point_at_which_the_caller_disconnects(client: httpx2.Client) -> None:
    with client.stream("POST", "/messages", json=body("linger", stream=True)) as answer:
        seen = ""
        for text in answer.iter_text():
            seen += text
            if "token2" in seen:
                break  # and disconnect

    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]


@pytest.mark.usefixtures("deployment")
def test_refusals_have_the_format_of_anthropics_errors_and_are_not_counted(client: httpx2.Client) -> None:
    unknown = client.post("/messages", json=body() | {"model": "other"})
    stranger = client.post("/messages", json=body(), headers={"x-api-key": "no"})
    malformed = client.post("/messages", content=b"{")
    client.headers.pop("x-api-key")
    anonymous = client.post("/messages", json=body())

    refusals = [unknown, stranger, malformed, anonymous]
    assert [response.status_code for response in refusals] == [404, 401, 400, 401]
    assert [response.json()["type"] for response in refusals] == ["error"] * 4
    assert [response.json()["error"]["type"] for response in refusals] == [
        "not_found_error",
        "authentication_error",
        "invalid_request_error",
        "authentication_error",
    ]
    assert not UsageRecord.objects.exists()


@pytest.mark.parametrize("path", ["/messages", "/messages/count_tokens"])
@pytest.mark.parametrize(
    ("cause", "status", "kind"),
    [
        (OperationalError("no connection"), 503, "overloaded_error"),
        (RuntimeError("a defect"), 500, "api_error"),
        (None, 400, "invalid_request_error"),
    ],
    ids=["outage", "defect", "host"],
)
def test_failures_of_the_gateway_itself_have_the_format_of_anthropics_errors(
    client: httpx2.Client,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    cause: Exception | None,
    status: int,
    kind: str,
) -> None:
    async def fail(*args: Any) -> None:
        if cause is not None:
            raise cause

    monkeypatch.setattr(serving, "authenticate", fail)

    response = client.post(path, json=body(), headers={} if cause else {"host": "not a host"})

    assert response.status_code == status
    assert (response.json()["type"], response.json()["error"]["type"]) == ("error", kind)


@pytest.mark.usefixtures("deployment")
def test_counting_tokens_costs_nothing_and_works_when_a_spend_cap_is_used_up(
    client: httpx2.Client, caller: Organization
) -> None:
    price_set(base_model_id="", input_nanousd=0, output_nanousd=USD)
    SpendCap.objects.create(organization=caller, nanousd=2 * USD)

    counted = client.post("/messages/count_tokens", json=body())
    refused = client.post("/messages", json=body())

    assert (counted.status_code, counted.json()["path"]) == (200, "/v1/messages/count_tokens")
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
    assert client.post("/messages", json=body() | {"max_tokens": 2}).status_code == 200
    assert wait_for_usage() == [USAGE | {"output_tokens": 2}], "only the message is counted"


def test_the_error_of_a_spend_cap_has_an_error_type_of_anthropics_api() -> None:
    error = {"message": "the cap is reached", "type": "insufficient_quota", "code": "spend_cap_reached", "param": None}

    assert WIRES[MESSAGES].error_body(error, status=429)["error"] == error | {"type": "rate_limit_error"}


TEXT: Any = {"type": "text", "text": "x"}
RESULT: Any = {"type": "tool_result", "tool_use_id": "t", "content": [TEXT, TEXT]}


@pytest.mark.parametrize(
    ("values", "num_parts", "has_tools"),
    [
        (body("x"), 1, False),
        (body("x", system="y"), 2, False),
        (body("x", system=[TEXT, TEXT]), 3, False),
        (body([TEXT] * 3), 4, False),
        (body([RESULT]), 4, True),
        (body([{"type": "tool_use", "id": "t", "name": "f", "input": {}}]), 2, True),
        (body("x", tools=[{"name": "f", "input_schema": {}}]), 1, True),
    ],
)
def test_the_cost_that_a_message_reserves_covers_its_blocks_and_its_max_tokens(
    values: dict[str, Any], num_parts: int, has_tools: bool
) -> None:
    raw = json.dumps(values).encode()

    request, sent = read(raw, MESSAGES)

    assert sent == raw
    assert (request.num_parts, request.has_tools, request.max_tokens) == (num_parts, has_tools, 5)
    long = replace(ROUTE, context_tokens=10**6, template_bytes=1000, input_nanousd=1, output_nanousd=0)
    assert cost_bound(request, long) >= (10**6 if has_tools else 1000 * num_parts)
