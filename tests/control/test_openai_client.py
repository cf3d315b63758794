"""The official client, unchanged, against the API: over real HTTP messages, without a socket."""

import json
from collections.abc import Iterator

import httpx2
import openai
import pytest
from django.core.handlers.wsgi import WSGIHandler

from control.accounts.models import Organization
from control.batches.assemble import batch_assemble
from control.batches.models import Batch
from control.batches.services import batch_validate
from tests.control.factories import chat_row, make_base_model, make_key


@pytest.fixture
def official(organization: Organization) -> Iterator[openai.OpenAI]:
    _, token = make_key(organization)
    with (
        httpx2.Client(transport=httpx2.WSGITransport(app=WSGIHandler())) as http,
        openai.OpenAI(
            api_key=token,
            base_url="http://testserver/v1",
            http_client=http,
            max_retries=0,
            _strict_response_validation=True,
        ) as client,
    ):
        yield client


def test_files_live_their_whole_life(official: openai.OpenAI) -> None:
    content = b'{"custom_id": "1"}\n'
    made = official.files.create(
        file=("rows.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )

    assert official.files.retrieve(made.id) == made
    assert [file.id for file in official.files.list(purpose="batch")] == [made.id]
    assert official.files.content(made.id).read() == content
    assert official.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        official.files.retrieve(made.id)


def test_batches_live_their_whole_life(official: openai.OpenAI) -> None:
    make_base_model("tiny")
    content = "".join(json.dumps(chat_row(str(i))) + "\n" for i in range(3)).encode()
    file = official.files.create(file=("rows.jsonl", content), purpose="batch")

    made = official.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"project": "one"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert made.status == "validating"
    assert made.metadata == {"project": "one"}
    row = Batch.objects.get(pk=made.id)
    assert batch_validate(batch=row)
    running = official.batches.retrieve(made.id)
    assert (running.status, running.model) == ("in_progress", "tiny")
    assert running.request_counts is not None
    assert running.request_counts.total == 3
    assert official.batches.cancel(made.id).status == "cancelling"
    batch_assemble(batch=row, final="cancelled")
    ended = next(iter(official.batches.list(limit=1)))

    assert ended.status == "cancelled"
    assert ended.output_file_id is None
    assert ended.error_file_id is not None
    lines = official.files.content(ended.error_file_id).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == ["0", "1", "2"]
    error_file = official.files.retrieve(ended.error_file_id)
    assert error_file.expires_at is not None


def test_models_are_listed_and_found_by_name(official: openai.OpenAI) -> None:
    make_base_model("meta/tiny")

    assert [model.id for model in official.models.list()] == ["meta/tiny"]
    assert official.models.retrieve("meta/tiny").owned_by == "slipstream"
    with pytest.raises(openai.NotFoundError) as refused:
        official.models.retrieve("none")
    assert refused.value.code == "model_not_found"


def test_errors_become_the_clients_own_exceptions(official: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        official.batches.create(
            input_file_id="file-none",
            endpoint="/v1/chat/completions",
            completion_window="1h",  # type: ignore[arg-type]
        )
    assert refused.value.param == "completion_window"
    assert refused.value.request_id
    with pytest.raises(openai.AuthenticationError):
        official.with_options(api_key="sk_live_wrong").models.list()
