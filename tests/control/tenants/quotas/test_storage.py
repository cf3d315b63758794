"""Files, upload parts, adapters and captured requests each count exactly once towards the limit of stored bytes."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from control.core.storage.backends import FolderStorage, get_storage
from control.core.storage.staging import measure
from control.data.files.models import File
from control.data.files.services import files_expire
from control.data.uploads.models import Upload
from control.data.uploads.services import part_add, upload_create, uploads_expire
from control.serving.captures.models import CapturedRequest
from control.serving.captures.sealing import Sealer
from control.serving.captures.selectors import captures_since
from control.serving.captures.services import captures_prune, request_capture
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_create
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits, StorageReservation, StoredBytes, StoredPart
from control.tenants.quotas.storage import RESERVED_SECONDS, reservations_expire, stored_bytes
from control.tenants.row_security.scope import as_tenant
from tests.control.factories import client_of, make_base_model, make_file, make_organization
from tests.control.models.adapters.support import make_adapter_files
from tests.control.tenants.quotas.test_quotas import both_databases, call_concurrently, with_limits
from tests.workers.supervisor.live import LiveStack
from workers.supervisor.stored_bytes import stored_bytes_recount


def usage_of(client: Client) -> dict[str, int]:
    body = client.get("/v1/storage").json()
    assert body.pop("object") == "storage"
    return {name: value for name, value in body.items() if name != "limit_bytes"}


def parts(**values: int) -> dict[str, int]:
    """Returns the expected usage, where `values` maps kinds of stored objects to their bytes."""
    all_parts = {f"{part}_bytes": values.get(part, 0) for part in StoredPart}
    return {"used_bytes": sum(values.values()), **all_parts}


def begin_upload(client: Client, size_bytes: int) -> Any:
    body = {"bytes": size_bytes, "filename": "in.jsonl", "mime_type": "text/jsonl", "purpose": "batch"}
    return client.post("/v1/uploads", body, content_type="application/json")


def add_part(client: Client, upload_id: str, content: bytes) -> Any:
    return client.post(f"/v1/uploads/{upload_id}/parts", {"data": SimpleUploadedFile("part", content)})


def complete(client: Client, upload_id: str, part_id: str) -> Any:
    return client.post(f"/v1/uploads/{upload_id}/complete", {"part_ids": [part_id]}, content_type="application/json")


def set_limit(organization: Organization, storage_bytes: int) -> None:
    Limits.objects.update_or_create(organization=organization, defaults={"storage_bytes": storage_bytes})


def capture(client: Client, deployment: Deployment) -> Any:
    return client.post(f"/v1/deployments/{deployment.pk}/capture", {"hours": 24}, content_type="application/json")


@pytest.fixture
def organization(transactional_db: None) -> Organization:
    return make_organization()


@pytest.fixture
def client(organization: Organization) -> Client:
    return client_of(organization)


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return deployment_create(organization=organization, name="math", base_model=make_base_model("tiny"))


def test_each_kind_of_stored_object_counts_exactly_while_it_is_stored(
    client: Client, organization: Organization, deployment: Deployment
) -> None:
    assert usage_of(client) == parts()
    config, weights = make_adapter_files(organization)
    files = config.size_bytes + weights.size_bytes
    assert usage_of(client) == parts(files=files)

    body = {"name": "a", "model": "tiny", "config_file": config.pk, "weights_file": weights.pk}
    adapter = client.post("/v1/adapters", body, content_type="application/json").json()
    assert usage_of(client) == parts(files=files, adapters=weights.size_bytes)
    for path in (f"files/{config.pk}", f"files/{weights.pk}", f"adapters/{adapter['id']}"):
        for _ in range(2):  # the second request is answered with 404 and frees nothing
            client.delete(f"/v1/{path}")
    assert usage_of(client) == parts()

    upload_id = begin_upload(client, 6).json()["id"]
    part_id = add_part(client, upload_id, b"abcdef").json()["id"]
    assert usage_of(client) == parts(uploads=6)
    complete(client, upload_id, part_id)
    assert usage_of(client) == parts(files=6)

    capture(client, deployment)
    assert request_capture(deployment_id=deployment.pk, endpoint="/v1/completions", body={"prompt": "p"})
    sealed = bytes(CapturedRequest.objects.get().sealed)
    assert usage_of(client) == parts(files=6, captures=len(sealed))
    client.delete(f"/v1/deployments/{deployment.pk}/capture")
    assert usage_of(client) == parts(files=6)


def test_of_two_uploads_only_one_gets_the_last_bytes_below_the_limit(
    client: Client, organization: Organization
) -> None:
    set_limit(organization, 10)
    first, second = (begin_upload(client, 6).json()["id"] for _ in range(2))

    part_id = add_part(client, first, b"abcdef").json()["id"]
    refused = add_part(client, second, b"ABCDEF")

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "storage_quota_exceeded")
    assert set(get_storage().sizes(f"{organization.pk}/uploads/{second}")) == set()
    assert complete(client, first, part_id).json()["status"] == "completed"
    assert usage_of(client) == parts(files=6)


@both_databases
def test_a_hundred_concurrent_upload_parts_do_not_exceed_the_limit(stack: LiveStack) -> None:
    organization = with_limits(stack.organization, storage_bytes=55)
    upload = upload_create(
        organization=organization, filename="f", purpose="batch", mime_type="text/plain", size_bytes=50
    )
    path = stack.data_dir / "part"
    path.write_bytes(b"x" * 10)

    def add() -> None:
        with as_tenant(organization.pk, None):
            part_add(upload=upload, staged=measure(path))

    outcomes = call_concurrently(add)

    assert (outcomes.count("done"), outcomes.count("storage_quota_exceeded")) == (5, 95)
    assert stored_bytes(organization.pk)[StoredPart.UPLOADS] == 50
    assert len(get_storage().sizes(f"{organization.pk}/uploads")) == 5, "a refused part must leave no bytes"
    assert not StorageReservation.objects.exists()


def test_an_organization_at_its_limit_can_complete_an_upload_because_the_file_replaces_the_parts(
    client: Client, organization: Organization
) -> None:
    set_limit(organization, 6)
    upload_id = begin_upload(client, 6).json()["id"]
    part_id = add_part(client, upload_id, b"abcdef").json()["id"]

    assert complete(client, upload_id, part_id).json()["status"] == "completed"


def test_an_expired_upload_and_an_expired_file_free_their_bytes_once(
    client: Client, organization: Organization
) -> None:
    add_part(client, begin_upload(client, 6).json()["id"], b"abcdef")
    make_file(organization, b"x" * 10)
    Upload.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    File.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    for _ in range(2):
        uploads_expire()
        files_expire()

    assert usage_of(client) == parts()


def test_at_the_storage_limit_a_capture_stops_and_states_the_reason_until_the_capture_is_set_again(
    client: Client, organization: Organization, deployment: Deployment
) -> None:
    body = {"prompt": "x" * 20}
    size = len(Sealer.of(organization.pk).seal(body, deployment_id=deployment.pk))
    set_limit(organization, 2 * size + 1)
    assert capture(client, deployment).json()["stopped"] is None
    kept = [request_capture(deployment_id=deployment.pk, endpoint="/v1/completions", body=body) for _ in range(50)]

    assert (kept.count(True), kept[:2]) == (2, [True, True])
    assert usage_of(client)["captures_bytes"] == 2 * size
    path = f"/v1/deployments/{deployment.pk}/capture"
    assert client.get(path).json()["stopped"]["code"] == "storage_quota_exceeded"
    assert captures_since([deployment.pk]) == {}, "the gateway does no further work for a stopped capture"

    set_limit(organization, 10_000)
    assert capture(client, deployment).json()["stopped"] is None
    assert request_capture(deployment_id=deployment.pk, endpoint="/v1/completions", body={"prompt": "x"})


def test_pruning_any_number_of_captured_requests_frees_their_bytes(
    client: Client, organization: Organization, deployment: Deployment
) -> None:
    capture(client, deployment)
    row: dict[str, Any] = {
        "deployment": deployment,
        "organization": organization,
        "endpoint": "/v1/completions",
        "sealed": b"",
    }
    CapturedRequest.objects.bulk_create(CapturedRequest(**row, size_bytes=2) for _ in range(1_200))
    CapturedRequest.objects.update(created_at=timezone.now() - timedelta(hours=25))
    CapturedRequest.objects.create(**row, size_bytes=7)
    stored_bytes_recount()
    assert usage_of(client)["captures_bytes"] == 2_407

    captures_prune()

    assert usage_of(client)["captures_bytes"] == 7
    assert CapturedRequest.objects.count() == 1


def test_a_check_of_the_storage_limit_does_not_sum_up_stored_objects(organization: Organization) -> None:
    """The cost of the check therefore does not grow with the number of files."""
    with CaptureQueriesContext(connection) as queries:
        make_file(organization, b"x")

    assert not [query["sql"] for query in queries if "SUM(" in query["sql"] or "COUNT(" in query["sql"]]


@pytest.mark.parametrize("is_stored", [False, True], ids=["before storing", "after storing"])
def test_bytes_of_a_process_that_dies_before_the_file_is_added_are_deleted_and_no_longer_counted(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    put_file = FolderStorage.put_file

    def put_and_die(self: FolderStorage, key: str, path: Path) -> None:
        if is_stored:
            put_file(self, key, path)
        os._exit(9)

    monkeypatch.setattr(FolderStorage, "put_file", put_and_die)
    connection.close()  # the child must not use the parent's connection
    if (child := os.fork()) == 0:
        make_file(organization, b"x" * 10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    monkeypatch.undo()
    assert usage_of(client) == parts(files=10)

    assert reservations_expire() == 0, "the process may still be storing the file"
    stored_bytes_recount()
    assert usage_of(client) == parts(files=10)
    StorageReservation.objects.update(created_at=Now() - timedelta(seconds=RESERVED_SECONDS + 3700))
    for _ in range(2):
        reservations_expire()

    assert usage_of(client) == parts()
    assert get_storage().sizes(f"{organization.pk}/files") == {}


def test_a_refused_request_frees_its_reserved_bytes_at_once(client: Client, organization: Organization) -> None:
    make_base_model("tiny")
    config, weights = make_adapter_files(organization)
    body = {"name": "a", "model": "tiny", "config_file": config.pk, "weights_file": weights.pk}
    headers = {"Idempotency-Key": "one"}
    client.post("/v1/adapters", body, content_type="application/json")

    refused = client.post("/v1/adapters", body, content_type="application/json", headers=headers)

    assert refused.json()["error"]["code"] == "name_taken"
    assert usage_of(client)["adapters_bytes"] == weights.size_bytes
    assert not StorageReservation.objects.exists()


def test_a_recount_corrects_wrong_counters_and_counts_each_organization_separately(client: Client) -> None:
    other = make_organization()
    make_file(other, b"x" * 10)
    StoredBytes.objects.update(files_bytes=-5, captures_bytes=3)

    stored_bytes_recount()

    assert usage_of(client) == parts()
    assert stored_bytes(other.pk)[StoredPart.FILES] == 10
    assert stored_bytes(other.pk)[StoredPart.CAPTURES] == 0
