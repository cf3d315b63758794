"""A POST request that is sent twice with the same idempotency key is executed once.

The tests of expiry move rows into the past.
"""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.idempotency import services
from control.tenants.idempotency.models import IdempotencyKey
from control.tenants.idempotency.services import Claim, key_claim, key_store, keys_purge
from control.workflows.batches.models import Batch
from tests.control.factories import chat_row, client_of, make_base_model, make_file

CHAT = "/v1/chat/completions"


def create_batch(client: Client, file: File, key: str | None = "once", **values: Any) -> Any:
    body = {"input_file_id": file.pk, "endpoint": CHAT, "completion_window": "24h", **values}
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/v1/batches", body, content_type="application/json", headers=headers)


def upload(client: Client, content: bytes, **fields: str) -> Any:
    form = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", content), **fields}
    return client.post("/v1/files", form, headers={"Idempotency-Key": "once"})


@pytest.fixture
def file(organization: Organization) -> File:
    make_base_model("tiny")
    return make_file(organization, [chat_row()])


def error_code(response: Any) -> str:
    return str(response.json()["error"]["code"])


def test_a_repeated_request_takes_effect_once_and_gets_the_same_response(client: Client, file: File) -> None:
    first = create_batch(client, file)
    second = create_batch(client, file, key='"once"')  # the IETF's draft writes the key in quotes

    assert first.status_code == second.status_code == 200
    assert first.content == second.content
    assert "Idempotency-Replayed" not in first
    assert second["Idempotency-Replayed"] == "true"
    assert second["x-request-id"] != first["x-request-id"]
    assert (Batch.objects.count(), Job.objects.count()) == (1, 1)


def test_a_request_without_an_idempotency_key_or_with_another_one_takes_effect_again(
    client: Client, file: File
) -> None:
    for key in (None, None, "a", "b"):
        assert create_batch(client, file, key=key).status_code == 200

    assert Batch.objects.count() == 4


def test_an_idempotency_key_is_valid_for_one_body_and_separate_for_each_route_and_organization(
    client: Client, file: File, other_organization: Organization
) -> None:
    made = create_batch(client, file).json()

    other_body = create_batch(client, file, metadata={"a": "b"})
    other_route = client.post(f"/v1/batches/{made['id']}/cancel", headers={"Idempotency-Key": "once"})
    foreign_batch = create_batch(client_of(other_organization), make_file(other_organization, [chat_row()]))

    assert (other_body.status_code, error_code(other_body)) == (422, "idempotency_key_reused")
    assert other_route.json()["status"] == "cancelling"
    assert foreign_batch.json()["id"] != made["id"]


def test_requests_whose_fields_differ_only_in_order_are_treated_as_equal(client: Client, file: File) -> None:
    first = create_batch(client, file, metadata={"a": "1", "b": "2"})
    second = create_batch(client, file, metadata={"b": "2", "a": "1"})

    assert first.content == second.content


def test_an_upload_is_identified_by_its_fields_and_its_content(client: Client) -> None:
    first = upload(client, b"{}\n")

    assert upload(client, b"{}\n").content == first.content
    assert upload(client, b"{ }\n").status_code == 422
    assert upload(client, b"{}\n", purpose="fine-tune").status_code == 422
    assert File.objects.count() == 1


def test_the_idempotency_key_of_a_refused_request_can_be_used_again(client: Client, file: File) -> None:
    refused = create_batch(client, file, endpoint="/v1/embeddings")
    assert refused.status_code == 400

    assert create_batch(client, file).status_code == 200


def test_a_request_that_crashes_is_rolled_back_and_its_response_is_not_stored(
    client: Client, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(batch: Batch) -> None:
        raise RuntimeError("after the batch was made")

    with monkeypatch.context() as patch:
        patch.setattr("control.workflows.batches.views.BatchObject.of", crash)
        assert create_batch(client, file).status_code == 500
    assert not Batch.objects.exists()

    assert create_batch(client, file).status_code == 200


def test_an_upload_that_crashes_leaves_no_stored_bytes(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def crash(file: File) -> None:
        keys.append(file.storage_key)
        raise RuntimeError("after the file was stored")

    monkeypatch.setattr("control.data.files.views.FileObject.of", crash)

    assert upload(client, b"{}\n").status_code == 500

    assert not File.objects.exists()
    assert [get_storage().exists(key) for key in keys] == [False]


def test_the_error_for_a_repetition_of_a_running_request_says_when_to_retry(
    client: Client, organization: Organization, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses: list[Any] = []
    store = services.key_store

    def store_after_a_repetition(**values: Any) -> None:
        responses.append(create_batch(client, file))
        store(**values)

    monkeypatch.setattr("control.tenants.idempotency.once.key_store", store_after_a_repetition)
    assert create_batch(client, file).status_code == 200

    (response,) = responses
    assert (response.status_code, response["Retry-After"]) == (409, "1")
    assert error_code(response) == "idempotency_key_in_use"
    assert Batch.objects.count() == 1


def test_an_idempotency_key_whose_lock_has_expired_can_be_claimed_again_and_the_first_claim_stores_nothing(
    organization: Organization,
) -> None:
    claim = partial(key_claim, organization=organization, route="POST /v1/batches", key="once", fingerprint="0" * 64)
    expired_claim = claim()
    assert isinstance(expired_claim, Claim)
    with pytest.raises(ApiError):
        claim()
    row = IdempotencyKey.objects.get()
    IdempotencyKey.objects.update(locked_until=row.locked_until - timedelta(seconds=services.LOCK_SECONDS + 1))

    second = claim()

    assert isinstance(second, Claim)
    with pytest.raises(ApiError) as refused:
        key_store(claim=expired_claim, status=200, body="{}")
    assert refused.value.status == 409
    key_store(claim=second, status=200, body="{}")


def test_an_idempotency_key_expires_after_a_day(client: Client, file: File) -> None:
    first = create_batch(client, file)
    keys_purge()
    assert create_batch(client, file).content == first.content
    IdempotencyKey.objects.update(created_at=IdempotencyKey.objects.get().created_at - timedelta(hours=24, seconds=1))

    second = create_batch(client, file)

    assert second.json()["id"] != first.json()["id"]
    IdempotencyKey.objects.update(created_at=IdempotencyKey.objects.get().created_at - timedelta(hours=24, seconds=1))
    assert keys_purge() == 1
    assert not IdempotencyKey.objects.exists()


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", "naïve"])
def test_an_invalid_idempotency_key_is_refused(client: Client, file: File, key: str) -> None:
    response = create_batch(client, file, key=key)

    assert (response.status_code, error_code(response)) == (400, "invalid_idempotency_key")
    assert not Batch.objects.exists()
