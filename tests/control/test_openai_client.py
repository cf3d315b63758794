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
from control.workflows.fine_tuning.models import FineTuningJob
from tests.control.factories import chat_row, make_base_model, make_key
from tests.control.workflows.pipelines.helpers import end_evaluation, made_until


@pytest.fixture
def official(organization: Organization, one_connection: None) -> Iterator[openai.OpenAI]:
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


def test_files_are_uploaded_listed_downloaded_and_deleted(official: openai.OpenAI) -> None:
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


def test_a_large_file_is_sent_in_parts(official: openai.OpenAI) -> None:
    content = bytes(range(256)) * 40

    upload = official.uploads.upload_file_chunked(
        file=content, filename="rows.jsonl", bytes=len(content), mime_type="text/jsonl", purpose="batch", part_size=4000
    )

    assert upload.status == "completed"
    assert upload.file is not None
    assert official.files.content(upload.file.id).read() == content
    cancelled = official.uploads.create(bytes=1, filename="a", mime_type="text/plain", purpose="user_data")
    official.uploads.parts.create(cancelled.id, data=b"a")
    assert official.uploads.cancel(cancelled.id).status == "cancelled"


def test_lists_are_paged_to_the_end(official: openai.OpenAI) -> None:
    ids = [official.files.create(file=("a", b"1"), purpose="user_data").id for _ in range(5)]

    assert [file.id for file in official.files.list(limit=2)] == ids[::-1]
    assert [file.id for file in official.files.list(limit=2, order="asc")] == ids
    assert official.files.wait_for_processing(ids[0]).status == "processed"


def test_batches_are_created_cancelled_and_listed_with_their_errors(official: openai.OpenAI) -> None:
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
    assert ended.request_counts is not None
    assert ended.request_counts.model_extra == {"cancelled": 3, "expired": 0, "pending": 0}
    error_file = official.files.retrieve(ended.error_file_id)
    assert error_file.expires_at is not None


def test_fine_tuning_jobs_are_created_run_listed_and_cancelled(official: openai.OpenAI) -> None:
    make_base_model("tiny")
    answer = {"role": "assistant", "content": "!"}
    rows = [{"messages": [{"role": "user", "content": f"{n}?"}, answer]} for n in range(9)]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file = official.files.create(file=("rows.jsonl", content), purpose="fine-tune")

    made = official.fine_tuning.jobs.create(
        model="tiny",
        training_file=file.id,
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2}}},
        metadata={"project": "one"},
        extra_body={"turbo": {"kind": "medusa"}},
    )
    assert (made.status, made.training_file, made.metadata) == ("queued", file.id, {"project": "one"})
    pipeline = end_evaluation(made_until("evaluate", FineTuningJob.objects.get(pk=made.id).pipeline))
    ended = official.fine_tuning.jobs.retrieve(made.id)
    assert (ended.status, ended.fine_tuned_model, ended.error) == ("succeeded", pipeline.name, None)
    events = list(official.fine_tuning.jobs.list_events(made.id, limit=2))
    assert events[0].message == "The job has succeeded"
    assert len({event.id for event in events}) == len(events) == 5
    assert list(official.fine_tuning.jobs.checkpoints.list(made.id)) == []

    other = official.fine_tuning.jobs.create(model="tiny", training_file=file.id)
    assert official.fine_tuning.jobs.cancel(other.id).status == "cancelled"
    assert [job.id for job in official.fine_tuning.jobs.list(limit=1)] == [other.id, made.id]
    with pytest.raises(openai.BadRequestError) as refused:
        official.fine_tuning.jobs.create(model="tiny", training_file=file.id, suffix="not this")
    assert refused.value.param == "suffix"


def test_a_request_with_an_idempotency_key_takes_effect_once(official: openai.OpenAI) -> None:
    make_base_model("tiny")
    file = official.files.create(file=("rows.jsonl", json.dumps(chat_row()).encode()), purpose="batch")

    def create(endpoint: Any) -> str:
        batch = official.batches.create(
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
        official.files.create(file=("a", b"1"), purpose="user_data", extra_headers={"Idempotency-Key": "once"}).id
        for _ in range(2)
    ]
    assert len(set(upload)) == 1


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
