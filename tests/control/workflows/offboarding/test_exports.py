"""Promise S50 of docs/reliability.md: an export contains all that an organization has, and nothing of others."""

import io
import json
import tarfile
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.workflows.offboarding import exporting, rows
from control.workflows.offboarding.contents import (
    NOT_EXPORTED,
    OBJECTS_NOT_EXPORTED,
    SECRET_COLUMNS,
    STORED_OBJECTS,
    exported_tables,
)
from control.workflows.offboarding.exporting import export_add_part, exports_continue, exports_expire
from control.workflows.offboarding.models import OrganizationExport, OrganizationExportPart
from control.workflows.offboarding.services import organization_export_create
from control.workflows.offboarding.tables import owned_tables
from tests.control.factories import make_file, make_job, make_organization
from tests.control.workflows.offboarding.support import (
    CONTENT,
    PROMPT,
    complete,
    fill,
    ids_of,
    key_columns,
    put,
    stored_keys,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("own_data_dir")]


def archive_of(client: Client, export: OrganizationExport) -> dict[str, bytes]:
    """Returns the content of each entry of the downloaded archive."""
    response: Any = client.get(f"/v1/organization/exports/{export.pk}/content")
    assert response.status_code == 200, response.content
    content = b"".join(response)
    assert len(content) == int(response.headers["Content-Length"]) == export.size_bytes
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {entry.name: _content_of(archive, entry) for entry in archive}


def _content_of(archive: tarfile.TarFile, entry: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(entry)
    assert content is not None, "every entry is a file"
    return content.read()


def rows_of(archive: dict[str, bytes], label: str) -> list[dict[str, Any]]:
    files = sorted(name for name in archive if name.startswith(f"objects/{label}/"))
    return [json.loads(line) for name in files for line in archive[name].splitlines()]


def test_each_table_and_each_storage_key_is_exported_or_excluded_with_a_reason() -> None:
    labels = {table.label for table in owned_tables()}
    columns = {f"{table.label}.{column}" for table in owned_tables() for column in key_columns(table.model)}

    assert set(NOT_EXPORTED) <= labels, "a table of this name does not exist"
    assert all(NOT_EXPORTED.values())
    assert {source.name for source in STORED_OBJECTS} | set(OBJECTS_NOT_EXPORTED) == columns


def test_an_export_has_every_row_of_every_table_and_every_stored_object(
    client: Client, organization: Organization
) -> None:
    fill(organization)
    file = make_file(organization, b"hello " * 1000, filename="../../sub/rows.jsonl")

    archive = archive_of(client, complete(organization_export_create(organization=organization)))

    for table in exported_tables():
        found = rows_of(archive, table.label)
        assert [row[table.model._meta.pk.attname] for row in found] == [
            json.loads(json.dumps(pk, default=str))
            for pk in table.rows(organization.pk).order_by("pk").values_list("pk", flat=True)
        ], table.label
        left_out = {field.attname for field in table.model._meta.concrete_fields} - set(found[0])
        assert left_out == SECRET_COLUMNS.get(table.label, set()), table.label
    assert archive[f"stored/files.File/{file.pk}/rows.jsonl"] == b"hello " * 1000
    for source in STORED_OBJECTS:
        stored = [content for name, content in archive.items() if name.startswith(f"stored/{source.label}/")]
        assert stored, source
        assert source.label == "files.File" or set(stored) == {CONTENT}, source
    manifest = json.loads(archive["manifest.json"])
    assert manifest["num_damaged"] == 0
    assert sum(manifest["rows"].values()) == sum(
        name.count(b"\n") for n, name in archive.items() if n[:8] == "objects/"
    )


def test_an_export_has_the_adapters_of_fine_tuning_also_of_a_failed_job_and_no_working_files(
    client: Client, organization: Organization
) -> None:
    failed, other = (
        make_job(organization, kind="training", params={"method": method}, status="failed", finished_at=timezone.now())
        for method in ("lora", "medusa")
    )
    for job in (failed, other):
        Job.objects.filter(pk=job.pk).update(checkpoint_key=f"jobs/{job.pk}/checkpoints/00000007.1")
        for name in ("adapter_model.safetensors", "adapter_config.json", "state.pt"):
            put(f"jobs/{job.pk}/checkpoints/00000007.1/{name}")

    archive = archive_of(client, complete(organization_export_create(organization=organization)))

    prefix = f"stored/jobs.Job/{failed.pk}/00000007.1"
    assert {name for name in archive if name.startswith("stored/jobs.Job/")} == {
        f"{prefix}/adapter_model.safetensors",
        f"{prefix}/adapter_config.json",
    }


def test_an_export_does_not_say_which_devices_of_the_installation_an_organization_holds() -> None:
    labels = {table.label for table in exported_tables()}

    assert not {"devices.DeviceLease", "devices.EndpointLease"} & labels


@pytest.mark.parametrize("filename", ["..", "a/..", "/"])
def test_a_file_name_that_programs_refuse_to_extract_is_replaced(
    client: Client, organization: Organization, filename: str
) -> None:
    file = make_file(organization, b"hello", filename=filename)

    archive = archive_of(client, complete(organization_export_create(organization=organization)))

    assert archive[f"stored/files.File/{file.pk}/file"] == b"hello"


def test_an_export_has_captured_requests_in_the_clear_and_no_secrets_or_other_organizations(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    fill(organization)
    fill(other_organization)
    foreign = ids_of(other_organization)

    archive = archive_of(client, complete(organization_export_create(organization=organization)))

    assert rows_of(archive, "captures.CapturedRequest")[0]["body"] == {"prompt": PROMPT}
    assert rows_of(archive, "accounts.Member")[0]["email"]
    whole = b"".join(archive.values()).decode()
    assert [identity for identity in foreign if identity in whole] == []
    secrets = ("secret_sha256", "password", "token", "encrypted")
    assert [name for name in secrets if f'"{name}"' in whole] == []


def test_an_archive_that_dying_processes_write_in_many_small_parts_has_the_same_content(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts end in the middle of objects. Every second process dies after it has stored its part."""
    fill(organization)
    make_file(organization, bytes(range(256)) * 40, filename="large.bin")
    expected = archive_of(client, complete(organization_export_create(organization=organization)))
    OrganizationExport.objects.all().delete()
    monkeypatch.setattr(exporting, "PART_BYTES", 3_000)
    monkeypatch.setattr(rows, "ROWS_A_READ", 1)
    export, record, calls = organization_export_create(organization=organization), exporting._record, [0]

    def dies_every_second_time(*args: Any) -> bool:
        calls[0] += 1
        if calls[0] % 2:
            raise SystemExit("killed")
        return record(*args)

    monkeypatch.setattr(exporting, "_record", dies_every_second_time)
    while OrganizationExport.objects.get(pk=export.pk).status == "running":
        try:
            exports_continue()
        except SystemExit:
            continue

    export.refresh_from_db()
    found = archive_of(client, export)
    assert export.num_parts > 20
    names = {name for name in expected if name.startswith("stored/")}
    assert {name: found[name] for name in names} == {name: expected[name] for name in names}
    for table in exported_tables():
        if table.label != "accounts.ApiKey":  # the download has recorded the use of the key
            assert rows_of(found, table.label) == rows_of(expected, table.label), table.label


def test_of_two_processes_that_write_the_same_part_one_is_recorded(organization: Organization) -> None:
    fill(organization)
    export = organization_export_create(organization=organization)
    stale = OrganizationExport.objects.get(pk=export.pk)

    export_add_part(export)
    export_add_part(stale)

    part = OrganizationExportPart.objects.get(export=export)
    assert {key for key in stored_keys() if key.endswith(".part")} == {part.storage_key}


def test_an_object_that_disappears_while_it_is_copied_is_named_and_the_archive_stays_readable(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "PART_BYTES", 3_000)
    file, missing = make_file(organization, b"x" * 10_000), make_file(organization, b"y" * 10)
    get_storage().delete(missing.storage_key)
    export = organization_export_create(organization=organization)
    while not OrganizationExport.objects.get(pk=export.pk).position.get("key"):
        export_add_part(OrganizationExport.objects.get(pk=export.pk))
    File.objects.filter(pk=file.pk).update(deleted_at=timezone.now())
    get_storage().delete(file.storage_key)

    archive = archive_of(client, complete(export))

    entry = f"stored/files.File/{file.pk}/rows.jsonl"
    assert len(archive[entry]) == 10_000
    assert json.loads(archive["manifest.json"])["damaged"] == sorted(
        [entry, f"stored/files.File/{missing.pk}/rows.jsonl"]
    )


def test_memory_does_not_grow_with_the_size_of_a_file(
    organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "PART_BYTES", 4 << 20)
    make_file(organization, b"x" * (24 << 20))
    export = organization_export_create(organization=organization)

    tracemalloc.start()
    try:
        export = complete(export)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert export.num_parts >= 6
    assert peak < 8 << 20


def test_a_range_continues_an_interrupted_download(client: Client, organization: Organization) -> None:
    make_file(organization)
    export = complete(organization_export_create(organization=organization))
    path = f"/v1/organization/exports/{export.pk}/content"
    whole = b"".join(client.get(path))

    for start in (0, 1, 700, len(whole) - 1):
        rest: Any = client.get(path, headers={"Range": f"bytes={start}-"})
        assert (rest.status_code, b"".join(rest)) == (206, whole[start:])


def test_an_organization_has_one_export_at_a_time_and_a_deleted_export_leaves_nothing(
    client: Client, organization: Organization
) -> None:
    created = client.post("/v1/organization/exports")
    refused = client.post("/v1/organization/exports")
    early = client.get(f"/v1/organization/exports/{created.json()['id']}/content")
    assert (created.status_code, created.json()["status"]) == (201, "running")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "export_exists")
    assert (early.status_code, early.json()["error"]["code"]) == (409, "export_not_ready")
    listed = client.get("/v1/organization/exports").json()["data"]
    assert listed == [client.get(f"/v1/organization/exports/{created.json()['id']}").json()] == [created.json()]
    exports_continue()

    deleted = client.delete(f"/v1/organization/exports/{created.json()['id']}")
    exports_expire()

    assert deleted.status_code == 200
    assert client.get(f"/v1/organization/exports/{created.json()['id']}").status_code == 404
    assert not OrganizationExport.objects.exists()
    assert [key for key in stored_keys() if "exports/" in key] == []
    assert client.post("/v1/organization/exports").status_code == 201


def test_an_expired_export_is_deleted_with_its_parts(client: Client, organization: Organization) -> None:
    make_file(organization)
    export = complete(organization_export_create(organization=organization))
    OrganizationExport.objects.update(expires_at=timezone.now() - timedelta(seconds=1))

    assert client.get(f"/v1/organization/exports/{export.pk}/content").status_code == 404
    exports_expire()

    assert not OrganizationExportPart.objects.exists()
    assert [key for key in stored_keys() if "exports" in key.split("/")[1:]] == [f"{organization.pk}/exports"]


def test_an_export_of_one_organization_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing, other = (organization_export_create(organization=make_organization()) for _ in range(2))
    add = exporting.export_add_part

    def fail(export: OrganizationExport) -> None:
        if export.pk == failing.pk:
            raise OSError("the disk is full")
        add(export)

    monkeypatch.setattr(exporting, "export_add_part", fail)
    exports_continue()
    other.refresh_from_db()
    assert other.status == "completed"
