"""OpenAI's official, unchanged client against the API, with real HTTP messages but without a socket."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from django.core.handlers.wsgi import WSGIHandler

from control.tenants.accounts.models import Organization
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_validate
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import chat_row, make_base_model, make_key
from tests.control.workflows.pipelines.helpers import advance_to_stage, end_evaluation


@pytest.fixture
def openai_client(organization: Organization, one_connection: None) -> Iterator[openai.OpenAI]:
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


def test_files_are_uploaded_listed_downloaded_and_deleted(openai_client: openai.OpenAI) -> None:
    content = b'{"custom_id": "1"}\n'
    created = openai_client.files.create(
        file=("rows.jsonl", content), purpose="batch", expires_after={"anchor": "created_at", "seconds": 7200}
    )

    assert openai_client.files.retrieve(created.id) == created
    assert [file.id for file in openai_client.files.list(purpose="batch")] == [created.id]
    assert openai_client.files.content(created.id).read() == content
    assert openai_client.files.delete(created.id).deleted
    with pytest.raises(openai.NotFoundError):
        openai_client.files.retrieve(created.id)


def test_a_large_file_is_sent_in_parts(openai_client: openai.OpenAI) -> None:
    content = bytes(range(256)) * 40

    upload = openai_client.uploads.upload_file_chunked(
        file=content, filename="rows.jsonl", bytes=len(content), mime_type="text/jsonl", purpose="batch", part_size=4000
    )

    assert upload.status == "completed"
    assert upload.file is not None
    assert openai_client.files.content(upload.file.id).read() == content
    cancelled = openai_client.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="user_data")
    openai_client.uploads.parts.create(cancelled.id, data=b"a")
    assert openai_client.uploads.cancel(cancelled.id).status == "cancelled"


def test_lists_are_paged_to_the_end(openai_client: openai.OpenAI) -> None:
    ids = [openai_client.files.create(file=("a", b"1"), purpose="user_data").id for _ in range(5)]

    assert [file.id for file in openai_client.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in openai_client.files.list(limit=2, order="asc")] == ids
    assert openai_client.files.wait_for_processing(ids[0]).status == "processed"


def test_batches_are_created_cancelled_and_listed_with_their_errors(openai_client: openai.OpenAI) -> None:
    make_base_model("tiny")
    content = "".join(json.dumps(chat_row(str(i))) + "\n" for i in range(3)).encode()
    file = openai_client.files.create(file=("rows.jsonl", content), purpose="batch")

    created = openai_client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"project": "one"},
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert created.status == "validating"
    assert created.metadata == {"project": "one"}
    batch = Batch.objects.get(pk=created.id)
    assert batch_validate(batch=batch)
    running = openai_client.batches.retrieve(created.id)
    assert (running.status, running.model) == ("in_progress", "tiny")
    assert running.request_counts is not None
    assert running.request_counts.total == 3
    assert openai_client.batches.cancel(created.id).status == "cancelling"
    batch_assemble(batch=batch, final="cancelled")
    ended = next(iter(openai_client.batches.list(limit=1)))

    assert ended.status == "cancelled"
    assert ended.output_file_id is None
    assert ended.error_file_id is not None
    lines = openai_client.files.content(ended.error_file_id).text.splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == ["0", "1", "2"]
    assert ended.request_counts is not None
    assert ended.request_counts.model_extra == {"cancelled": 3, "expired": 0, "pending": 0}
    error_file = openai_client.files.retrieve(ended.error_file_id)
    assert error_file.expires_at is not None


def test_fine_tuning_jobs_are_created_completed_listed_and_cancelled(openai_client: openai.OpenAI) -> None:
    make_base_model("tiny")
    answer = {"role": "assistant", "content": "!"}
    rows = [{"messages": [{"role": "user", "content": f"{n}?"}, answer]} for n in range(9)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file = openai_client.files.create(file=("rows.jsonl", content), purpose="fine-tune")

    created = openai_client.fine_tuning.jobs.create(
        model="tiny",
        training_file=file.id,
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        metadata={"project": "one"},
        extra_body={"turbo": {"kind": "medusa"}},
    )
    assert (created.status, created.training_file, created.metadata) == ("queued", file.id, {"project": "one"})
    pipeline = end_evaluation(advance_to_stage("evaluate", Pipeline.objects.get()))
    ended = openai_client.fine_tuning.jobs.retrieve(created.id)
    assert (ended.status, ended.fine_tuned_model, ended.error) == ("succeeded", pipeline.name, None)
    events = list(openai_client.fine_tuning.jobs.list_events(created.id, limit=2))
    assert events[0].message == "The job has succeeded"
    assert len({event.id for event in events}) == len(events) == 5
    assert list(openai_client.fine_tuning.jobs.checkpoints.list(created.id)) == []

    other = openai_client.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    assert openai_client.fine_tuning.jobs.cancel(other.id).status == "cancelled"
    assert [job.id for job in openai_client.fine_tuning.jobs.list(limit=1)] == [other.id, created.id]
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.fine_tuning.jobs.create(model="tiny", training_file=file.id, suffix="not this")
    assert refused.value.param == "suffix"


def test_a_request_with_an_idempotency_key_takes_effect_once(openai_client: openai.OpenAI) -> None:
    make_base_model("tiny")
    file = openai_client.files.create(file=("rows.jsonl", json.dumps(chat_row()).encode()), purpose="batch")

    def create(endpoint: Any) -> str:
        batch = openai_client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,
            completion_window="24h",
            extra_headers={"Idempotency-Key": "once"},
        )
        return batch.id

    assert create("/v1/chat/completions") == create("/v1/chat/completions")
    with pytest.raises(openai.UnprocessableEntityError):
        create("/v1/completions")
    upload = [
        openai_client.files.create(file=("a", b"1"), purpose="user_data", extra_headers={"Idempotency-Key": "once"}).id
        for _ in range(2)
    ]
    assert len(set(upload)) == 1


def test_models_are_listed_and_found_by_name(openai_client: openai.OpenAI) -> None:
    make_base_model("meta/tiny")

    assert [model.id for model in openai_client.models.list()] == ["meta/tiny"]
    assert openai_client.models.retrieve("meta/tiny").owned_by == "slipstream"
    with pytest.raises(openai.NotFoundError) as refused:
        openai_client.models.retrieve("none")
    assert refused.value.code == "model_not_found"


def test_errors_raise_the_clients_own_exceptions(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.batches.create(
            input_file_id="file-none",
            endpoint="/v1/chat/completions",
            completion_window="1h",  # type: ignore[arg-type]
        )
    assert refused.value.param == "completion_window"
    assert refused.value.request_id
    with pytest.raises(openai.AuthenticationError):
        openai_client.with_options(api_key="sk_live_wrong").models.list()
