"""Archives with the evidence for a speculator, from the request to the verification without a network."""

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from control.core.certificates import public_key_body
from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel, Speculator
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.services import evaluation_finish, evaluation_start
from slipstream.archives import verify_archive
from slipstream.errors import CertificateError
from tests.control.factories import client_of
from tests.control.serving.deployments.support import make_speculator
from tests.control.workflows.evaluations.evidence import make_evidence
from tests.control.workflows.speculators.calls import content, post
from tests.workers.exports.speculators import write_medusa
from workers.contracts import file_sha256, files_below, fingerprint

pytestmark = pytest.mark.usefixtures("own_data_dir")


def evaluate(speculator: Speculator, folder: Path, *, equal: int = 20) -> Evaluation:
    """Stores what the worker stores at the end of an evaluation. The speculator's files are in `folder` / own."""
    evaluation = evaluation_start(speculator=speculator, prompts=None, rows_key="rows", settings={}, memory_needed={})
    prefix = f"evaluations/{evaluation.pk}"
    (folder / "report.json").write_text(json.dumps({"speedup": 1.75, "evaluation": evaluation.pk}))
    (folder / "report.svg").write_text("<svg/>")
    for name in ("report.json", "report.svg"):
        get_storage().put_file(f"{prefix}/{name}", folder / name)
    own = folder / "own"
    evidence = make_evidence(equal=equal, different=20 - equal) | {
        "speculator_sha256": fingerprint(own, files_below(own)),
        "report_sha256": file_sha256(folder / "report.json"),
    }
    evaluation_finish(evaluation=evaluation, report={}, evidence=evidence, plots_prefix=prefix)
    return evaluation


@pytest.fixture
def archive(client: Client, speculator: Speculator, tmp_path: Path) -> bytes:
    evaluate(speculator, tmp_path)
    return content(client, post(client, f"/v1/speculators/{speculator.pk}/archive", {})["id"])


def files_of(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def verified(files: dict[str, bytes], folder: Path) -> dict[str, Any]:
    path = folder / "verified.zip"
    with zipfile.ZipFile(path, "w") as out:
        for name, data in files.items():
            out.writestr(name, data)
    return verify_archive(path, public_key_body()["public_key"])


def test_an_archive_has_weights_recipe_report_certificate_and_commands_and_can_be_verified(
    archive: bytes, speculator: Speculator, tmp_path: Path
) -> None:
    files = files_of(archive)

    assert verified(files, tmp_path)["speculator"]["id"] == speculator.pk
    folders = {name.rpartition("/")[0] for name in files}
    assert folders == {"", "speculator", "speculators", "specforge"}
    own = tmp_path / "own"
    assert {f"speculator/{path.name}": path.read_bytes() for path in own.iterdir()}.items() <= files.items()
    assert json.loads(files["report.json"])["speedup"] == 1.75
    assert files["report.svg"] == b"<svg/>"
    assert json.loads(files["recipe.json"])["model_sha256"] == speculator.target_revision
    readme = files["README.md"].decode()
    assert "20 of 20 answers were equal" in readme
    assert "--drafter eagle3+suffix --speculator-dir speculator" in readme
    assert 'vllm serve m --speculative-config \'{"method": "eagle3", "model": "speculators"' in readme
    assert "--speculative-draft-model-path specforge" in readme


def test_a_format_that_cannot_represent_the_speculator_is_named_with_the_reason(
    client: Client, model: BaseModel, organization: Organization, tmp_path: Path
) -> None:
    speculator = make_speculator(model, organization, kind="medusa", storage_prefix=f"{organization.pk}/test/medusa")
    own = tmp_path / "own"
    own.mkdir()
    write_medusa(own, token_input=True)
    get_storage().put_folder(speculator.storage_prefix, own)
    evaluate(speculator, tmp_path)

    files = files_of(content(client, post(client, f"/v1/speculators/{speculator.pk}/archive", {})["id"]))

    assert verified(files, tmp_path)
    assert not any(name.startswith(("lorax/", "medusa/")) for name in files)
    readme = files["README.md"].decode()
    assert "- `medusa` is omitted: " in readme
    assert "- `lorax` is omitted: " in readme


def _edit(name: str, change: Callable[[bytes], bytes]) -> Callable[[dict[str, bytes]], None]:
    def edit(files: dict[str, bytes]) -> None:
        files[name] = change(files[name])

    return edit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_edit("speculator/model.safetensors", lambda data: data[:-1] + b"x"), "model.safetensors was modified"),
        (_edit("report.json", lambda data: data.replace(b"1.75", b"2.75")), "report.json was modified"),
        (_edit("README.md", lambda data: data + b"rm -rf /"), "README.md was modified"),
        (_edit("certificate.json", lambda data: data.replace(b'"equal": 20', b'"equal": 21')), "modified after it was"),
        (_edit("manifest.json", lambda data: data.replace(b"README.md", b"READ.md")), "modified after it was signed"),
        (_edit("manifest.json", lambda data: b"[]"), "manifest.json must contain an object"),
        (lambda files: files.pop("recipe.json"), "recipe.json"),
        (lambda files: files.pop("certificate.json"), "no readable certificate.json"),
        (lambda files: files.update({"more.txt": b""}), "more.txt"),
    ],
)
def test_a_modified_archive_is_refused(
    archive: bytes, tmp_path: Path, change: Callable[[dict[str, bytes]], object], message: str
) -> None:
    files = files_of(archive)
    change(files)

    with pytest.raises(CertificateError, match=message):
        verified(files, tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_with_compressed_files_is_refused_before_a_file_is_read(
    archive: bytes, tmp_path: Path, compression: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest of a few compressed bytes could otherwise fill the memory before its signature is checked."""
    path = tmp_path / "packed.zip"
    with zipfile.ZipFile(path, "w", compression) as out:
        for name, data in files_of(archive).items():
            out.writestr(name, data)
    monkeypatch.delattr(zipfile.ZipFile, "open")

    with pytest.raises(CertificateError, match="must not be compressed"):
        verify_archive(path, public_key_body()["public_key"])


def test_a_long_manifest_is_refused_before_it_is_parsed(archive: bytes, tmp_path: Path) -> None:
    files = files_of(archive)
    files["manifest.json"] = b"[" + b"[]," * (2 << 20) + b"[]]"

    with pytest.raises(CertificateError, match="which is too much"):
        verified(files, tmp_path)


def test_an_archive_with_damaged_offsets_or_names_is_refused(archive: bytes, tmp_path: Path) -> None:
    path, start = tmp_path / "damaged.zip", archive.rindex(b"PK\x01\x02")  # the last entry of the directory
    bad_name = archive[: start + 9] + b"\x08" + archive[start + 10 : start + 46] + b"\xff" + archive[start + 47 :]
    bad_offset = archive[: start + 42] + b"\xfe\xff\xff\xff" + archive[start + 46 :]

    for damaged in (bad_name, bad_offset):
        path.write_bytes(damaged)
        with pytest.raises(CertificateError):
            verify_archive(path, public_key_body()["public_key"])


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_bytes(b"PK")

    with pytest.raises(CertificateError, match="cannot be read"):
        verify_archive(tmp_path / "no.zip", public_key_body()["public_key"])


def test_weights_that_changed_after_the_evaluation_do_not_match_the_certificate(
    client: Client, speculator: Speculator, tmp_path: Path
) -> None:
    evaluate(speculator, tmp_path)
    (tmp_path / "own" / "provenance.json").write_text("{}")
    get_storage().put_folder(speculator.storage_prefix, tmp_path / "own")
    made = post(client, f"/v1/speculators/{speculator.pk}/archive", {})

    with pytest.raises(CertificateError, match="other weights"):
        verified(files_of(content(client, made["id"])), tmp_path)


def test_the_evaluation_can_be_chosen_and_the_latest_is_the_default(
    client: Client, speculator: Speculator, tmp_path: Path
) -> None:
    first, second = evaluate(speculator, tmp_path), evaluate(speculator, tmp_path, equal=19)
    path = f"/v1/speculators/{speculator.pk}/archive"

    for body, evaluation in (({}, second), ({"evaluation_id": first.pk}, first)):
        files = files_of(content(client, post(client, path, body)["id"]))
        assert verified(files, tmp_path)["evaluation_id"] == evaluation.pk
        assert json.loads(files["report.json"])["evaluation"] == evaluation.pk


def test_two_archives_of_the_same_evaluation_have_the_same_bytes(
    client: Client, speculator: Speculator, archive: bytes
) -> None:
    assert content(client, post(client, f"/v1/speculators/{speculator.pk}/archive", {})["id"]) == archive


def test_a_speculator_without_a_finished_evaluation_has_no_archive(client: Client, speculator: Speculator) -> None:
    path = f"/v1/speculators/{speculator.pk}/archive"
    assert post(client, path, {}, status=409)["error"]["code"] == "evaluation_not_finished"
    running = evaluation_start(speculator=speculator, prompts=None, rows_key="rows", settings={}, memory_needed={})

    assert post(client, path, {}, status=409)["error"]["code"] == "evaluation_not_finished"
    assert post(client, path, {"evaluation_id": running.pk}, status=409)["error"]["code"] == "evaluation_not_finished"
    assert post(client, path, {"evaluation_id": "eval_1"}, status=404)["error"]["code"] == "evaluation_not_found"


def test_an_archive_is_audited_and_belongs_to_one_organization(
    client: Client, speculator: Speculator, other_organization: Organization, archive: bytes
) -> None:
    other = client_of(other_organization)

    post(other, f"/v1/speculators/{speculator.pk}/archive", {}, status=404)
    assert list(AuditEvent.objects.filter(action="speculator.archive").values_list("object_id", flat=True)) == [
        speculator.pk
    ]
