"""The routes of /v1/files, and the deletion of files that have expired."""

import hashlib
import io
import os
import time
from datetime import timedelta
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoCaptureOnCommitCallbacks, Settings

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.core.storage.staging import ABANDONED_SECONDS, new_staging_path, staging_purge
from control.data.files.models import File
from control.data.files.services import files_expire
from control.tenants.accounts.models import Organization
from tests.control.factories import client_of, make_file

pytestmark = pytest.mark.usefixtures("own_data_dir")


def upload(client: Client, content: bytes = b"{}\n", **fields: Any) -> Any:
    form = {"purpose": "batch", "file": SimpleUploadedFile("in.jsonl", content), **fields}
    return client.post("/v1/files", {key: value for key, value in form.items() if value is not None})


def staged_names() -> list[str]:
    folder = get_config().staging_dir
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_an_uploaded_file_has_the_fields_of_openais_api_and_is_downloaded_byte_for_byte(client: Client) -> None:
    content = bytes(range(256)) * 20_000  # 5 MB: more than Django would keep in memory

    response = upload(client, content)

    assert response.status_code == 200
    body = response.json()
    assert {key: body[key] for key in ("object", "bytes", "filename", "purpose", "status", "expires_at")} == {
        "object": "file",
        "bytes": len(content),
        "filename": "in.jsonl",
        "purpose": "batch",
        "status": "processed",
        "expires_at": None,
    }
    assert File.objects.get(pk=body["id"]).sha256 == hashlib.sha256(content).hexdigest()
    download = client.get(f"/v1/files/{body['id']}/content")
    assert download.getvalue() == content
    assert download["Content-Length"] == str(len(content))
    assert staged_names() == []


def test_a_file_expires_relative_to_its_creation_and_is_then_not_found(
    client: Client, organization: Organization
) -> None:
    fields: dict[str, Any] = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}
    body = upload(client, **fields).json()

    assert abs(body["expires_at"] - body["created_at"] - 3600) <= 1
    File.objects.filter(pk=body["id"]).update(expires_at=File.objects.get(pk=body["id"]).created_at)
    assert client.get(f"/v1/files/{body['id']}").status_code == 404


def test_staged_files_of_a_killed_server_are_deleted_after_a_day() -> None:
    abandoned, current = new_staging_path(), new_staging_path()
    for path in (abandoned, current):
        path.write_bytes(b"half an upload")
    a_day_ago = time.time() - ABANDONED_SECONDS - 1
    os.utime(abandoned, (a_day_ago, a_day_ago))

    assert staging_purge() == 1

    assert staged_names() == [current.name]


def test_the_bytes_of_an_expired_file_are_deleted(
    db: None, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    expired, later, permanent = make_file(), make_file(), make_file()
    now = timezone.now()
    File.objects.filter(pk=expired.pk).update(expires_at=now - timedelta(seconds=1))
    File.objects.filter(pk=later.pk).update(expires_at=now + timedelta(hours=1))

    with django_capture_on_commit_callbacks(execute=True):
        assert files_expire() == 1

    assert [get_storage().exists(file.storage_key) for file in (expired, later, permanent)] == [False, True, True]
    assert files_expire() == 0


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"purpose": None}, "purpose", "missing_required_parameter"),
        ({"purpose": "batch_output"}, "purpose", "invalid_value"),
        ({"file": None}, "file", "missing_required_parameter"),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "10"},
            "expires_after.seconds",
            "invalid_value",
        ),
        ({"expires_after[seconds]": "3600"}, "expires_after.anchor", "missing_required_parameter"),
    ],
)
def test_the_error_for_a_bad_form_names_the_field(
    client: Client, fields: dict[str, Any], param: str, code: str
) -> None:
    response = upload(client, **fields)

    assert response.status_code == 400
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == (param, code)
    assert not File.objects.exists()
    assert staged_names() == []


def test_a_file_over_the_limit_is_refused_and_leaves_no_staged_file(client: Client, settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"max_upload_bytes": 100_000})

    response = upload(client, b"x" * 100_001)

    assert response.status_code == 413
    assert response.json()["error"]["code"] == "file_too_large"
    assert not File.objects.exists()
    assert staged_names() == []


def test_a_truncated_form_is_refused_and_leaves_no_staged_file(client: Client) -> None:
    body = (
        b'--X\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n'
        b"Content-Transfer-Encoding: base64\r\n\r\n%%%%" + b"%" * 100_000
    )

    response = client.generic("POST", "/v1/files", body, content_type="multipart/form-data; boundary=X")

    assert response.status_code == 400
    assert staged_names() == []


def test_a_deleted_file_is_not_found_and_its_bytes_are_deleted(
    client: Client, organization: Organization, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    file = make_file(organization)

    with django_capture_on_commit_callbacks(execute=True):
        response = client.delete(f"/v1/files/{file.pk}")

    assert response.json() == {"id": file.pk, "object": "file", "deleted": True}
    assert not get_storage().exists(file.storage_key)
    for path in (f"/v1/files/{file.pk}", f"/v1/files/{file.pk}/content"):
        assert client.get(path).status_code == 404
    assert client.delete(f"/v1/files/{file.pk}").status_code == 404
    assert client.get("/v1/files").json()["data"] == []


def test_files_of_another_organization_are_not_found(client: Client, other_organization: Organization) -> None:
    file = make_file(other_organization)

    responses = [
        client.get(f"/v1/files/{file.pk}"),
        client.get(f"/v1/files/{file.pk}/content"),
        client.delete(f"/v1/files/{file.pk}"),
    ]

    assert [response.status_code for response in responses] == [404, 404, 404]
    assert client.get("/v1/files").json()["data"] == []
    assert client_of(other_organization).get(f"/v1/files/{file.pk}").status_code == 200


def test_pages_list_every_file_once_and_the_newest_first(client: Client, organization: Organization) -> None:
    made = [make_file(organization).pk for _ in range(5)]
    listed, after = [], ""
    while True:
        page = client.get("/v1/files", {"limit": "2", "after": after}).json()
        listed += [item["id"] for item in page["data"]]
        if not page["has_more"]:
            break
        after = page["last_id"]

    assert listed == sorted(made, reverse=True)
    assert [item["id"] for item in client.get("/v1/files", {"order": "asc"}).json()["data"]] == sorted(made)
    assert client.get("/v1/files", {"purpose": "evals"}).json()["data"] == []


@pytest.mark.parametrize("limit", ["0", "10001", "-1", "x", "²", "9" * 5000])
def test_a_limit_out_of_range_is_refused(client: Client, limit: str) -> None:
    response = client.get("/v1/files", {"limit": limit})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "limit"


def test_stored_bytes_are_deleted_if_the_row_cannot_be_written(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_keys: list[str] = []
    storage = get_storage()

    def fail(**values: Any) -> None:
        stored_keys.append(values["file"].storage_key)
        raise RuntimeError("the database is gone")

    monkeypatch.setattr("control.data.files.services.file_add", fail)

    with pytest.raises(RuntimeError):
        make_file(organization, io.BytesIO(b"x").read())

    assert [storage.exists(key) for key in stored_keys] == [False]


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 2000,
            400,
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a"; filename="b"\r\n\r\n1\r\n' * 200,
            400,
        ),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"1" * (9 << 20) + b"\r\n--x--\r\n",
            413,
        ),
    ],
)
def test_a_form_with_too_many_fields_files_or_bytes_is_refused_and_leaves_no_staged_file(
    client: Client, content_type: str, body: bytes, status: int
) -> None:
    response = client.generic("POST", "/v1/files", body, content_type=content_type)

    assert (response.status_code, response.json()["error"]["type"]) == (status, "invalid_request_error")
    assert staged_names() == []
