"""The routes of /v1/uploads, with which a client uploads a file in parts.

Stored bytes are deleted by `on_commit` callbacks, which run only inside of `django_capture_on_commit_callbacks`.
"""

import hashlib
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.data.uploads.models import Upload, UploadPart
from control.data.uploads.services import uploads_expire
from control.tenants.accounts.models import Organization
from tests.control.factories import client_of


def create(client: Client, size_bytes: int, **values: Any) -> Any:
    body = {"bytes": size_bytes, "filename": "in.jsonl", "mime_type": "text/jsonl", "purpose": "batch", **values}
    return client.post("/v1/uploads", body, content_type="application/json")


def add(client: Client, upload_id: str, content: bytes) -> Any:
    return client.post(f"/v1/uploads/{upload_id}/parts", {"data": SimpleUploadedFile("part", content)})


def complete(client: Client, upload_id: str, part_ids: list[str], **values: str) -> Any:
    body = {"part_ids": part_ids, **values}
    return client.post(f"/v1/uploads/{upload_id}/complete", body, content_type="application/json")


def error_code(response: Any) -> str:
    return str(response.json()["error"]["code"])


@pytest.fixture
def upload_id(client: Client) -> str:
    """An upload of six bytes."""
    return str(create(client, 6).json()["id"])


def test_parts_are_joined_in_the_order_of_the_request_that_completes_the_upload(
    client: Client, upload_id: str, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    second, first = (add(client, upload_id, content).json()["id"] for content in (b"def", b"abc"))
    with django_capture_on_commit_callbacks(execute=True):
        body = complete(client, upload_id, [first, second], md5=hashlib.md5(b"abcdef").hexdigest()).json()

    assert (body["status"], body["file"]["bytes"], body["file"]["purpose"]) == ("completed", 6, "batch")
    assert client.get(f"/v1/files/{body['file']['id']}/content").getvalue() == b"abcdef"
    assert not UploadPart.objects.exists()
    assert client.get(f"/v1/uploads/{upload_id}").json() == body


@pytest.mark.parametrize(
    ("contents", "part_indexes", "values", "code"),
    [
        ([b"abc", b"de"], [0, 1], {}, "upload_size_mismatch"),
        ([b"abc", b"def"], [0], {}, "upload_size_mismatch"),
        ([b"abc"], [0, 0], {}, "invalid_value"),
        ([b"abcdef"], [0], {"md5": "0" * 32}, "md5_mismatch"),
    ],
)
def test_parts_that_do_not_make_up_the_file_leave_the_upload_pending(
    client: Client, upload_id: str, contents: list[bytes], part_indexes: list[int], values: dict[str, str], code: str
) -> None:
    part_ids = [add(client, upload_id, content).json()["id"] for content in contents]

    response = complete(client, upload_id, [part_ids[n] for n in part_indexes], **values)

    assert (response.status_code, error_code(response)) == (400, code)
    assert not File.objects.exists()
    assert client.get(f"/v1/uploads/{upload_id}").json()["status"] == "pending"


def test_an_upload_of_more_than_8_gib_is_refused(client: Client) -> None:
    body = {"bytes": (8 << 30) + 1, "filename": "f", "mime_type": "text/plain", "purpose": "batch"}

    response = client.post("/v1/uploads", body, content_type="application/json")

    assert (response.status_code, error_code(response)) == (413, "file_too_large")


def test_a_part_may_be_sent_again_only_once(client: Client, upload_id: str) -> None:
    """The parts of an upload may have at most twice the size of the upload."""
    assert add(client, upload_id, b"abcdef").status_code == 200
    repeated = add(client, upload_id, b"abcdef").json()["id"]
    third = add(client, upload_id, b"abcdef")

    assert (third.status_code, error_code(third)) == (400, "upload_too_large")
    assert complete(client, upload_id, [repeated]).json()["status"] == "completed"


def test_a_cancelled_upload_can_no_longer_be_changed(
    client: Client, upload_id: str, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    part_id = add(client, upload_id, b"abcdef").json()["id"]
    key = UploadPart.objects.get().storage_key
    with django_capture_on_commit_callbacks(execute=True):
        assert client.post(f"/v1/uploads/{upload_id}/cancel").json()["status"] == "cancelled"

    assert not get_storage().exists(key)
    for response in (
        add(client, upload_id, b"abcdef"),
        complete(client, upload_id, [part_id]),
        client.post(f"/v1/uploads/{upload_id}/cancel"),
    ):
        assert (response.status_code, error_code(response)) == (400, "invalid_upload_status")


def test_an_upload_expires_after_an_hour_and_its_bytes_are_deleted(client: Client, upload_id: str) -> None:
    part_id = add(client, upload_id, b"abcdef").json()["id"]
    key = UploadPart.objects.get().storage_key
    assert uploads_expire() == 0
    Upload.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert error_code(complete(client, upload_id, [part_id])) == "invalid_upload_status"
    assert uploads_expire() == 1

    assert client.get(f"/v1/uploads/{upload_id}").json()["status"] == "expired"
    assert not get_storage().exists(key)
    assert not UploadPart.objects.exists()


def test_an_upload_of_another_organization_is_not_found(
    upload_id: str, client: Client, other_organization: Organization
) -> None:
    other_client = client_of(other_organization)

    assert other_client.get(f"/v1/uploads/{upload_id}").status_code == 404
    assert add(other_client, upload_id, b"abcdef").status_code == 404
    own_upload_id = create(other_client, 6).json()["id"]
    part_id = add(client, upload_id, b"abcdef").json()["id"]
    assert error_code(complete(other_client, own_upload_id, [part_id])) == "upload_part_not_found"


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"bytes": 0}, 400, "bytes"),
        ({"bytes": 1 << 40}, 413, "bytes"),
        ({"purpose": "batch_output"}, 400, "purpose"),
        ({"unknown": 1}, 400, "unknown"),
        ({"expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "expires_after.seconds"),
    ],
)
def test_the_error_for_a_bad_request_names_the_field(
    client: Client, values: dict[str, Any], status: int, param: str
) -> None:
    values_without_bytes = {name: value for name, value in values.items() if name != "bytes"}
    response = create(client, values.get("bytes", 6), **values_without_bytes)

    assert (response.status_code, response.json()["error"]["param"]) == (status, param)


def test_the_lifetime_of_a_file_begins_when_its_upload_is_completed(client: Client) -> None:
    upload = create(client, 3, expires_after={"anchor": "created_at", "seconds": 3600}).json()
    part_id = add(client, upload["id"], b"abc").json()["id"]

    file = complete(client, upload["id"], [part_id]).json()["file"]

    assert abs(file["expires_at"] - file["created_at"] - 3600) <= 1
