"""All tokens are counted, whether or not the caller requests usage, and even if a stream is cut off."""

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from control.billing.usage.models import UsageRecord
from control.billing.usage.services import Tokens
from control.serving.deployments.models import Deployment
from control.serving.gateway.completion_request import metered_request
from control.serving.gateway.meter import tokens_of
from control.tenants.accounts.models import ApiKey, Organization

USAGE = {"model": "fast", "is_batch": False, "input_tokens": 7, "cached_tokens": 4, "requests": 1}


@pytest.fixture
def client(base_url: str, token: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=base_url, headers={"Authorization": f"Bearer {token}"}, trust_env=False) as client:
        yield client


def chat(content: str, **values: Any) -> dict[str, Any]:
    return {"model": "fast", "messages": [{"role": "user", "content": content}], **values}


def wait_for_usage() -> list[dict[str, Any]]:
    """Waits for the usage in the database: a stream is counted after its last event."""
    deadline = time.monotonic() + 10
    while not (rows := list(UsageRecord.objects.values(*USAGE, "output_tokens"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    return rows


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("values", [{}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}])
def test_a_request_is_counted_with_its_key(client: httpx2.Client, caller: Organization, values: dict[str, Any]) -> None:
    assert client.post("/chat/completions", json=chat("hello", **values)).status_code == 200

    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]
    assert UsageRecord.objects.get().api_key_id == ApiKey.objects.get(organization=caller).pk


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_a_stream_without_the_option_include_usage_has_no_usage(client: httpx2.Client, options: Any) -> None:
    response = client.post("/chat/completions", json=chat("hello", stream=True, stream_options=options))

    events = [event.removeprefix("data: ") for event in response.text.removesuffix("\n\n").split("\n\n")]
    assert events.pop() == "[DONE]"
    assert [len(json.loads(event)["choices"]) for event in events] == [1, 1]
    assert not any("usage" in event for event in events)


@pytest.mark.usefixtures("deployment")
def test_with_the_option_include_usage_only_the_last_chunk_has_usage(base_url: str, token: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key=token) as client:
        stream = client.chat.completions.create(
            model="fast",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        *others, last = stream

    assert [(len(chunk.choices), chunk.usage) for chunk in others] == [(1, None), (1, None)], (
        "clients add up the usage of all chunks"
    )
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 2


@pytest.mark.usefixtures("deployment")
def test_with_the_option_continuous_usage_stats_all_chunks_have_usage(client: httpx2.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = client.post("/chat/completions", json=chat("hello", stream=True, stream_options=options))

    assert [line.count('"completion_tokens"') for line in answer.text.split("\n\n")[:3]] == [1, 1, 1]


@pytest.mark.usefixtures("deployment")
@pytest.mark.parametrize("content", ["die", "linger"])
def test_a_stream_that_the_engine_or_the_caller_cuts_off_is_counted_up_to_that_point(
    client: httpx2.Client, content: str
) -> None:
    with client.stream("POST", "/chat/completions", json=chat(content, stream=True)) as answer:
        seen = ""
        for text in answer.iter_text():
            seen += text
            if content == "linger" and "token1" in seen:
                break  # and disconnect

    assert wait_for_usage() == [USAGE | {"output_tokens": 2}]


@pytest.mark.usefixtures("deployment")
def test_a_refused_request_is_not_counted(client: httpx2.Client, deployment: Deployment) -> None:
    assert client.post("/chat/completions", json=chat("refuse")).status_code == 400
    assert client.post("/chat/completions", json=chat("refuse", stream=True)).status_code == 400

    assert not UsageRecord.objects.exists()


def test_a_request_without_a_stream_is_sent_unchanged() -> None:
    assert metered_request(chat("x")) is None
    assert metered_request(chat("x", stream="yes")) is None
    assert metered_request(chat("x", stream=True, stream_options=[])) is None
    assert metered_request(chat("x", stream=True, stream_options={"include_usage": "yes"})) is None, (
        "the engine will refuse it"
    )


def test_the_gateway_requests_usage_from_the_engine_for_a_stream_and_keeps_other_options() -> None:
    body = chat("x", stream=True, stream_options={"include_obfuscation": False}, seed=2**60)

    sent = json.loads(metered_request(body) or b"")

    options = {"include_obfuscation": False, "include_usage": True, "continuous_usage_stats": True}
    assert sent == body | {"stream_options": options}


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"usage": null}', b'{"usage": {"prompt_tokens": 1}}', b"\xff"])
def test_an_answer_without_usage_has_no_tokens(answer: bytes) -> None:
    assert tokens_of(answer) is None


@pytest.mark.parametrize("count", [None, "3", 1.5, -1, True])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
def test_usage_that_is_not_a_number_of_tokens_is_not_read(name: str, count: object) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 5} | {name: count}

    assert tokens_of(json.dumps({"usage": usage}).encode()) is None


@pytest.mark.parametrize("details", ["null", "{}", '{"cached_tokens": null}'])
def test_usage_without_token_details_is_read(details: str) -> None:
    usage = f'{{"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {details}}}'

    assert tokens_of(f'{{"usage": {usage}}}'.encode()) == Tokens(input=3, output=5, cached=0)
    assert tokens_of(b'{"usage": {"prompt_tokens": 3, "completion_tokens": 5}}') == Tokens(input=3, output=5)
