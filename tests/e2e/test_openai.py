"""The unchanged official `openai` package works with the live API."""

import io
import json
from typing import Any

import openai
import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.stack import wait_for

ENDED = ("completed", "failed", "cancelled", "expired")


def row(number: int, **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": f"What is {number} + {number}?"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 12, "temperature": 0, **body}
    return {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}


def upload(client: openai.OpenAI, lines: list[str]) -> str:
    source = io.BytesIO("".join(f"{line}\n" for line in lines).encode())
    return client.files.create(file=("rows.jsonl", source), purpose="batch").id


def run_batch(client: openai.OpenAI, lines: list[str]) -> Any:
    batch = client.batches.create(
        input_file_id=upload(client, lines), endpoint="/v1/chat/completions", completion_window="24h"
    )
    wait_for(lambda: client.batches.retrieve(batch.id).status in ENDED, 90.0, "the batch has not ended")
    return client.batches.retrieve(batch.id)


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).object == "model"


def test_an_uploaded_file_can_be_read_unchanged_until_it_is_deleted(client: openai.OpenAI) -> None:
    content = ("é" * 1000 + "\n").encode()

    file = client.files.create(file=("ü.jsonl", io.BytesIO(content)), purpose="batch")

    assert (file.bytes, file.filename, file.status) == (len(content), "ü.jsonl", "processed")
    assert client.files.content(file.id).read() == content
    assert file.id in [other.id for other in client.files.list()]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)


@pytest.fixture(scope="module")
def batch(client: openai.OpenAI) -> Any:
    """A batch of eleven rows that has ended. Row 5 is too long for the model."""
    too_long = [{"role": "user", "content": "x" * 2000}]  # one token per byte; the model's limit is 1024
    return run_batch(
        client, [json.dumps(row(number, **({"messages": too_long} if number == 5 else {}))) for number in range(11)]
    )


def test_a_batch_answers_every_row_once_and_in_order(client: openai.OpenAI, batch: Any) -> None:
    assert batch.status == "completed"
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (11, 10, 1)
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == [f"row-{number}" for number in range(11) if number != 5]
    assert all(answer["response"]["body"]["choices"][0]["finish_reason"] for answer in answers)


def test_a_row_that_the_model_refuses_goes_to_the_error_file(client: openai.OpenAI, batch: Any) -> None:
    (refused,) = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
    assert refused["custom_id"] == "row-5"
    assert refused["response"]["status_code"] == 400


def test_a_batch_with_bad_lines_fails_and_reports_each_of_them(client: openai.OpenAI) -> None:
    lines = [json.dumps(row(0)), "{not json", json.dumps(row(0)), json.dumps({**row(3), "url": "/v1/embeddings"})]

    batch = run_batch(client, lines)

    assert batch.status == "failed"
    assert [(bad.line, bad.code) for bad in batch.errors.data] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "url_mismatch"),
    ]


def test_a_chat_completion_is_answered(client: openai.OpenAI, endpoint: str) -> None:
    answer = client.chat.completions.create(
        model=endpoint, messages=[{"role": "user", "content": "Hello"}], max_tokens=8, temperature=0
    )

    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert 1 <= answer.usage.completion_tokens <= 8
    assert answer.model == endpoint


def test_a_streamed_answer_has_the_same_content_as_one_without_streaming(client: openai.OpenAI, endpoint: str) -> None:
    request: dict[str, Any] = {
        "model": endpoint,
        "messages": [{"role": "user", "content": "Tell me more"}],
        "max_tokens": 24,
        "temperature": 0.8,
        "seed": 7,
    }
    complete_answer = client.chat.completions.create(**request)

    chunks = list(client.chat.completions.create(**request, stream=True, stream_options={"include_usage": True}))

    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == complete_answer.choices[0].message.content
    assert chunks[-1].usage is not None
    assert complete_answer.usage is not None
    # The second request finds the beginning of the prompt in the cache, so the usage details differ.
    assert chunks[-1].usage.total_tokens == complete_answer.usage.total_tokens
    assert chunks[-1].usage.completion_tokens == complete_answer.usage.completion_tokens


def test_a_text_completion_is_answered(client: openai.OpenAI, endpoint: str) -> None:
    answer = client.completions.create(model=endpoint, prompt="Once", max_tokens=8, temperature=0)

    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 8


@pytest.mark.parametrize("stream", [False, True])
def test_the_responses_api_gives_the_text_and_the_usage_of_a_chat_completion(
    client: openai.OpenAI, endpoint: str, stream: bool
) -> None:
    common: dict[str, Any] = {"model": endpoint, "temperature": 0.8, "top_p": 0.9, "extra_body": {"seed": 7}}
    chat = client.chat.completions.create(messages=[{"role": "user", "content": "Tell"}], max_tokens=24, **common)

    created: Any = client.responses.create(input="Tell", max_output_tokens=24, stream=stream, **common)
    response = list(created)[-1].response if stream else created

    assert response.output_text == chat.choices[0].message.content
    assert chat.usage is not None
    tokens = (response.usage.input_tokens, response.usage.output_tokens)
    assert tokens == (chat.usage.prompt_tokens, chat.usage.completion_tokens)


def test_errors_raise_the_clients_exceptions(client: openai.OpenAI, endpoint: str) -> None:
    messages: Any = [{"role": "user", "content": "Hello"}]
    client_with_unknown_key = client.with_options(api_key="sk_live_" + "0" * 44)

    with pytest.raises(openai.AuthenticationError) as unknown_key:
        client_with_unknown_key.models.list()
    with pytest.raises(openai.AuthenticationError):
        client_with_unknown_key.chat.completions.create(model=endpoint, messages=messages)
    with pytest.raises(openai.NotFoundError) as unknown_model:
        client.chat.completions.create(model="unknown", messages=messages)
    with pytest.raises(openai.BadRequestError) as bad_parameter:
        client.chat.completions.create(model=endpoint, messages=messages, temperature=9)
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_unknown")

    assert unknown_key.value.code == "invalid_api_key"
    assert unknown_model.value.code == "model_not_found"
    assert bad_parameter.value.param == "temperature"
