"""/v1/responses through the gateway: usage of complete and interrupted answers, events, errors and reserved costs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest

from control.billing.usage.models import UsageRecord
from control.serving.captures.models import CapturedRequest
from control.serving.captures.services import capture_set
from control.serving.deployments.models import Deployment
from control.serving.gateway.completion_request import CompletionRequest, read
from control.serving.gateway.costs import cost_bound
from control.serving.gateway.meter import without_comment
from tests.control.serving.gateway.test_costs import ROUTE
from tests.control.serving.gateway.test_meter import USAGE, wait_for_usage

RESPONSES = "/v1/responses"


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        yield client


def body(content: str = "hello", **values: Any) -> dict[str, Any]:
    return {"model": "fast", "input": content, **values}


def last_event(response: httpx2.Response) -> dict[str, Any]:
    name, data = response.text.removesuffix("\n\n").rpartition("\n\n")[2].split("\n")
    values: dict[str, Any] = json.loads(data.removeprefix("data: "))
    assert name == f"event: {values['type']}"
    return values


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("stream", [False, True])
def test_a_response_is_counted_and_its_body_is_sent_unchanged(client: httpx2.Client, stream: bool) -> None:
    response = client.post("/responses", json=body(stream=stream))

    assert response.status_code == 200
    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]
    if not stream:
        assert (response.json()["echo"], response.json()["path"]) == (body(stream=False), RESPONSES)


@pytest.mark.usefixtures("deployment")
def test_the_engines_usage_comments_in_a_stream_do_not_reach_the_caller(client: httpx2.Client) -> None:
    response = client.post("/responses", json=body(stream=True))

    events = response.text.removesuffix("\n\n").split("\n\n")
    assert [event.partition("\n")[0].removeprefix("event: response.") for event in events] == [
        "created",
        "output_text.delta",
        "output_text.delta",
        "completed",
    ]
    assert "usage" not in response.text


@pytest.mark.usefixtures("deployment")
def test_a_stream_whose_engine_dies_ends_with_an_error_event_and_is_counted(client: httpx2.Client) -> None:
    failure = last_event(client.post("/responses", json=body("die", stream=True)))

    assert (failure["type"], failure["code"]) == ("error", "upstream_terminated")
    assert failure["error"]["message"] == failure["message"]
    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]


@pytest.mark.usefixtures("deployment")
def test_a_stream_whose_engine_dies_raises_an_exception_in_openais_client(base_url: str, token: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key=token, max_retries=0) as client:
        stream = client.responses.create(model="fast", input="die", stream=True)
        with pytest.raises(openai.APIError) as caught:
            list(stream)

    assert caught.value.code == "upstream_terminated"


@pytest.mark.usefixtures("deployment")
def test_a_stream_is_counted_up_to_the_point_at_which_the_caller_disconnects(client: httpx2.Client) -> None:
    with client.stream("POST", "/responses", json=body("linger", stream=True)) as answer:
        seen = ""
        for text in answer.iter_text():
            seen += text
            if "token2" in seen:
                break  # and disconnect

    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]


@pytest.mark.usefixtures("deployment")
def test_a_refused_response_is_not_counted(client: httpx2.Client) -> None:
    assert client.post("/responses", json=body("refuse")).status_code == 400
    assert client.post("/responses", json=body(), headers={"Authorization": "Bearer no"}).status_code == 401
    assert client.post("/responses", json=body() | {"model": "other"}).status_code == 404

    assert not UsageRecord.objects.exists()


def test_a_response_is_not_captured(client: httpx2.Client, deployment: Deployment) -> None:
    capture_set(deployment=deployment, hours=1)

    assert client.post("/responses", json=body()).status_code == 200

    wait_for_usage()
    assert not CapturedRequest.objects.exists()


@pytest.mark.parametrize(
    ("values", "num_parts", "has_tools"),
    [
        ({"input": "x"}, 1, False),
        ({"input": "x", "instructions": "y"}, 2, False),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}] * 3}]}, 4, False),
        ({"input": "x", "tools": [{"type": "function", "name": "f"}]}, 1, True),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, 1, True),
    ],
)
def test_the_cost_that_a_response_reserves_covers_its_items_and_its_max_output_tokens(
    values: dict[str, Any], num_parts: int, has_tools: bool
) -> None:
    raw = json.dumps(body(**values, max_output_tokens=7)).encode()

    request, sent = read(raw, RESPONSES)

    assert sent == raw
    assert (request.num_parts, request.has_tools, request.max_tokens) == (num_parts, has_tools, 7)
    long = replace(ROUTE, context_tokens=10**6, template_bytes=1000, input_nanousd=1, output_nanousd=0)
    assert cost_bound(request, long) >= (10**6 if has_tools else 1000 * num_parts)
    assert CompletionRequest.of({"model": "m", "input": "x"}, num_bytes=1).max_tokens is None


def test_a_usage_comment_is_split_from_its_event() -> None:
    assert without_comment(b': {"usage":1}\nevent: x\ndata: {}') == (b'{"usage":1}', b"event: x\ndata: {}")
    assert without_comment(b'data: {"a": ": "}') == (b"", b'data: {"a": ": "}')
