"""Export, import and deletion of speculators through the API."""

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from django.test import Client

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.models.catalog.models import BaseModel, Speculator
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_delete
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent
from control.workflows.pipelines.models import Pipeline
from engine.drafters.eagle3_module import Eagle3
from tests.control.factories import client_of, make_file, make_job
from tests.control.serving.deployments.support import make_deployment, make_speculator
from tests.control.workflows.pipelines.helpers import make_pipeline
from tests.control.workflows.speculators.calls import content, post

pytestmark = pytest.mark.usefixtures("own_data_dir")


def import_speculator(
    client: Client, organization: Organization, archive: bytes, *, status: int = 201, **body: Any
) -> Any:
    file = make_file(organization, archive, filename="s.zip", purpose=File.Purpose.USER_DATA)
    body_with_file = {"file_id": file.pk, "format": "speculators", "model": "m", "name": "guest", **body}
    return post(client, "/v1/speculators", body_with_file, status=status)


def zipped(**files: bytes) -> bytes:
    return zipped_by(zipfile.ZIP_DEFLATED, files)


def zipped_by(method: int, files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as out:
        for name, data in files.items():
            out.writestr(name, data)
    return made.getvalue()


def staged_files() -> list[Path]:
    folder = get_config().staging_dir
    return list(folder.iterdir()) if folder.exists() else []


def test_importing_an_export_creates_a_speculator_with_the_same_weights(
    client: Client, organization: Organization, speculator: Speculator, tmp_path: Path
) -> None:
    file = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "specforge"})
    assert (file["filename"], file["purpose"]) == ("heads-v1-specforge.zip", "fine-tune-results")

    body = import_speculator(client, organization, content(client, file["id"]), format="specforge")

    assert {name: body[name] for name in ("kind", "status", "name", "version", "model")} == {
        "kind": "eagle3",
        "status": "ready",
        "name": "guest",
        "version": 1,
        "model": "m",
    }
    assert body["training"]["imported_from"] == "specforge"
    made = Speculator.objects.get(pk=body["id"])
    assert made.target_revision == speculator.base_model.revision
    get_storage().get_folder(made.storage_prefix, tmp_path / "back")
    before, after = Eagle3.load(tmp_path / "own"), Eagle3.load(tmp_path / "back")
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))
    assert staged_files() == []


def test_exports_of_the_same_speculator_have_the_same_bytes(client: Client, speculator: Speculator) -> None:
    path = f"/v1/speculators/{speculator.pk}/export"

    first, second = (post(client, path, {"format": "speculators"})["id"] for _ in range(2))

    assert content(client, first) == content(client, second)


def test_an_imported_speculator_can_be_deployed(
    client: Client, organization: Organization, speculator: Speculator
) -> None:
    file = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"})
    body = import_speculator(client, organization, content(client, file["id"]))

    post(client, "/v1/deployments", {"name": "fast", "model": "m", "speculator_id": body["id"]})


def test_a_second_import_under_the_same_name_creates_the_next_version(
    client: Client, organization: Organization, speculator: Speculator
) -> None:
    file = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"})
    archive = content(client, file["id"])

    # The exported speculator is version 1 of the name "heads".
    assert [import_speculator(client, organization, archive, name="heads")["version"] for _ in range(2)] == [2, 3]


def test_exporting_to_a_format_that_does_not_support_the_kind_is_refused(
    client: Client, speculator: Speculator
) -> None:
    error = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "lorax"}, status=400)["error"]

    assert (error["code"], error["param"]) == ("speculator_not_exportable", "format")
    assert not File.objects.exists()


def test_a_speculator_that_was_trained_for_other_weights_cannot_be_exported(
    client: Client, speculator: Speculator
) -> None:
    Speculator.objects.filter(pk=speculator.pk).update(target_revision="1" * 64)

    error = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"}, status=409)["error"]

    assert error["code"] == "speculator_mismatch"


def test_a_speculator_in_training_cannot_be_exported(client: Client, speculator: Speculator) -> None:
    Speculator.objects.filter(pk=speculator.pk).update(status=Speculator.Status.TRAINING)

    error = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"}, status=409)["error"]

    assert error["code"] == "speculator_not_ready"


def test_a_report_stored_by_an_older_version_is_shown_unchanged(client: Client, speculator: Speculator) -> None:
    Speculator.objects.update(training=["medusa"], report="fast")

    body = client.get(f"/v1/speculators/{speculator.pk}").json()

    assert (body["training"], body["report"]) == (["medusa"], "fast")


def damaged(archive: bytes) -> bytes:
    """An archive whose compressed data is corrupt."""
    begin = archive.index(b"config.json") + len("config.json")
    return archive[:begin] + b"\xff" * 8 + archive[begin + 8 :]


def far_away(archive: bytes) -> bytes:
    """An archive whose only entry begins at byte 2**63, where no file can be read."""
    entry, end = archive.index(b"PK\x01\x02"), archive.index(b"PK\x05\x06")
    extra = b"\x01\x00\x08\x00" + (1 << 63).to_bytes(8, "little")
    moved = archive[entry : entry + 30] + b"\x0c\x00" + archive[entry + 32 : entry + 42] + b"\xff" * 4
    moved += archive[entry + 46 : end] + extra
    return archive[:entry] + moved + archive[end : end + 12] + len(moved).to_bytes(4, "little") + archive[end + 16 :]


# Each value is an archive, and a text that the error message must contain; `|` separates alternative texts.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "no zip": (b"PK\x03\x04 and nothing more", "no readable zip"),
    "a damaged zip": (damaged(zipped(**{"config.json": b"abcdefgh" * 100})), "no readable zip"),
    "a name that is not UTF-8": (zipped(ä=b"").replace("ä".encode(), b"\xff\xff"), "no readable zip"),
    "an entry at an impossible offset": (far_away(zipped(**{"config.json": b"{}"})), "no readable zip"),
    "an empty zip": (zipped(), "holds 1 to 200 files"),
    "a path that leaves the folder": (zipped(**{"../../config.json": b"{}"}), "the archive must hold"),
    "an absolute path": (zipped(**{"/etc/config.json": b"{}"}), "the archive must hold"),
    "folders in folders": (zipped(**{"a/b/config.json": b"{}"}), "the archive must hold"),
    "two folders": (zipped(**{"a/config.json": b"{}", "b/model.safetensors": b""}), "the archive must hold"),
    "a path with a backslash": (zipped(**{"a\\config.json": b"{}"}), "may not be part|can't be the name"),
    "too many files": (zipped(**{f"{number}.md": b"" for number in range(201)}), "holds 1 to 200 files"),
    "a pickle": (zipped(**{"config.json": b"{}", "model.bin": b"\x80"}), "model.bin may not be part"),
    "a method without a limit": (zipped_by(zipfile.ZIP_BZIP2, {"config.json": b"{}"}), "with deflate"),
    "no speculator": (zipped(**{"config.json": b"{}"}), "speculators_model_type must be"),
}


@pytest.mark.parametrize(("archive", "messages"), HOSTILE.values(), ids=HOSTILE.keys())
def test_an_archive_without_a_valid_speculator_is_refused_and_leaves_nothing(
    archive: bytes, messages: str, client: Client, organization: Organization, model: BaseModel
) -> None:
    error = import_speculator(client, organization, archive, status=400)["error"]

    assert (error["code"], error["param"]) == ("speculator_invalid", "file_id")
    assert any(part in error["message"] for part in messages.split("|")), error["message"]
    assert not Speculator.objects.exists()
    assert staged_files() == []


def test_an_archive_that_is_too_large_when_unpacked_is_refused(
    client: Client, organization: Organization, model: BaseModel, settings: Any
) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"max_weights_bytes": 1 << 16})
    bomb = zipped(**{"config.json": b"{}", "model.safetensors": bytes(1 << 17)})
    assert len(bomb) < 1 << 12

    error = import_speculator(client, organization, bomb, status=400)["error"]

    assert "at most 65,536 bytes" in error["message"]


@pytest.mark.parametrize("direction", ["export", "import"])
def test_a_speculator_that_is_too_large_is_not_converted_within_a_request(
    client: Client, organization: Organization, speculator: Speculator, settings: Any, direction: str
) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"max_weights_bytes": 100})

    if direction == "export":
        path = f"/v1/speculators/{speculator.pk}/export"
        error = post(client, path, {"format": "specforge"}, status=413)["error"]
    else:
        error = import_speculator(client, organization, bytes(101), status=413)["error"]

    assert error["code"] == "speculator_too_large"


def test_a_small_archive_that_is_large_when_unpacked_is_refused(
    client: Client, organization: Organization, model: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota limits only the size of archives, so the unpacked size is limited relative to the archive's size."""
    monkeypatch.setattr("control.workflows.speculators.services._FREE_BYTES", 1 << 10)
    bomb = zipped(**{"config.json": b"{}", "model.safetensors": bytes(1 << 20)})

    error = import_speculator(client, organization, bomb, status=400)["error"]

    assert f"at most {(1 << 10) + 2 * len(bomb):,} bytes" in error["message"]


def test_a_failed_import_leaves_no_stored_objects(
    client: Client, organization: Organization, speculator: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise RuntimeError("no database")

    file = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"})
    archive = content(client, file["id"])
    before = sorted((get_config().storage_dir / organization.pk).rglob("model.safetensors"))
    monkeypatch.setattr("control.workflows.speculators.services.speculator_create", fail)

    import_speculator(client, organization, archive, status=500)

    assert sorted((get_config().storage_dir / organization.pk).rglob("model.safetensors")) == before


# Each of these functions puts the speculator to a use during which it cannot be deleted.


def _deploy(speculator: Speculator) -> None:
    make_deployment(speculator.base_model, speculator.organization, speculator=speculator)


def _train(speculator: Speculator) -> None:
    Speculator.objects.filter(pk=speculator.pk).update(status=Speculator.Status.TRAINING)


def _evaluate(speculator: Speculator) -> None:
    make_job(speculator.organization, kind=Job.Kind.EVALUATION, params={"speculator_id": speculator.pk})


def _continue_training_from(speculator: Speculator) -> None:
    make_job(speculator.organization, params={"initial_speculator_id": speculator.pk, "speculator_id": "spec_other"})


def _gate(speculator: Speculator) -> None:
    pipeline = make_pipeline(speculator.organization, base_model=speculator.base_model, name="p")
    Pipeline.objects.filter(pk=pipeline.pk).update(speculator=speculator, status=Pipeline.Status.GATING)


def _replace_in_a_rollout(speculator: Speculator) -> None:
    owner, other = (
        speculator.organization,
        make_speculator(speculator.base_model, speculator.organization, name="other"),
    )
    deployment, canary = (make_deployment(speculator.base_model, owner, name) for name in ("a", "b"))
    Rollout.objects.create(
        organization=owner,
        deployment=deployment,
        canary=canary,
        speculator=other,
        previous=speculator,
        share_percent=10,
        min_requests=1,
        max_acceptance_drop=0.1,
        max_error_rate=0.1,
        max_seconds=60,
    )


@pytest.mark.parametrize("use", [_replace_in_a_rollout, _deploy, _train, _evaluate, _continue_training_from, _gate])
def test_a_speculator_in_use_cannot_be_deleted(
    use: Callable[[Speculator], None], client: Client, speculator: Speculator
) -> None:
    use(speculator)

    response = client.delete(f"/v1/speculators/{speculator.pk}")

    assert (response.status_code, response.json()["error"]["code"]) == (409, "speculator_in_use")
    assert get_storage().exists(f"{speculator.storage_prefix}/config.json")


@pytest.mark.django_db(transaction=True)
def test_a_deleted_speculator_is_not_found_and_its_files_are_deleted(client: Client, speculator: Speculator) -> None:
    response = client.delete(f"/v1/speculators/{speculator.pk}")

    assert response.json() == {"id": speculator.pk, "object": "speculator", "deleted": True}
    assert client.get(f"/v1/speculators/{speculator.pk}").status_code == 404
    assert client.delete(f"/v1/speculators/{speculator.pk}").status_code == 404
    assert client.get("/v1/speculators").json()["data"] == []
    error = post(client, "/v1/deployments", {"name": "fast", "model": "m", "speculator_id": speculator.pk}, status=404)[
        "error"
    ]
    assert error["code"] == "speculator_not_found"
    assert not get_storage().exists(f"{speculator.storage_prefix}/config.json")


def test_a_speculator_can_be_deleted_after_its_deployment(client: Client, speculator: Speculator) -> None:
    _deploy(speculator)
    deployment_delete(deployment=Deployment.objects.get())

    assert client.delete(f"/v1/speculators/{speculator.pk}").status_code == 200


def test_versions_of_a_name_continue_after_a_deletion(
    client: Client, organization: Organization, speculator: Speculator
) -> None:
    file = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"})
    client.delete(f"/v1/speculators/{speculator.pk}")

    assert import_speculator(client, organization, content(client, file["id"]), name="heads")["version"] == 2


def test_each_operation_is_audited(client: Client, organization: Organization, speculator: Speculator) -> None:
    file = post(client, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"})
    import_speculator(client, organization, content(client, file["id"]))
    client.delete(f"/v1/speculators/{speculator.pk}")

    actions = AuditEvent.objects.filter(object_type="speculator").order_by("id").values_list("action", flat=True)
    assert list(actions) == ["speculator.export", "speculator.import", "speculator.delete"]


def test_another_organization_can_neither_export_nor_delete_a_speculator(
    speculator: Speculator, other_organization: Organization
) -> None:
    other = client_of(other_organization)

    post(other, f"/v1/speculators/{speculator.pk}/export", {"format": "speculators"}, status=404)
    assert other.delete(f"/v1/speculators/{speculator.pk}").status_code == 404
    assert json.loads((get_config().storage_dir / speculator.storage_prefix / "config.json").read_text())
