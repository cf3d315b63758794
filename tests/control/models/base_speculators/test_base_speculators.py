"""Operators publish base speculators for all organizations, and nothing of the publishing organization is shown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from django.core.management import CommandError, call_command
from django.test import Client
from safetensors.torch import load_file

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.models.base_speculators.publishing import (
    base_speculator_import,
    base_speculator_publish,
    base_speculator_withdraw,
)
from control.models.base_speculators.services import base_speculator_use
from control.models.catalog.models import BaseModel, BaseSpeculator, Speculator
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.tenants.audit.models import AuditEvent
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization
from tests.control.serving.deployments.support import make_speculator
from tests.control.workflows.pipelines.helpers import end_batch
from tests.tiny_model import make_tiny_model
from tests.workers.exports.speculators import write_speculator
from workers.exports.artifact import Artifact
from workers.kinds import OUTPUT_CHANGING_KINDS, TRAINED_KINDS
from workers.supervisor.staging import stage_speculator

pytestmark = pytest.mark.usefixtures("own_data_dir")
TEXTS = {"tokenizer_sha256": "a" * 64, "chat_template_sha256": "b" * 64}
SECRET = "lineage-of-the-publisher"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4, dtype=torch.bfloat16)


@pytest.fixture
def model(db: None, model_dir: Path) -> BaseModel:
    made = make_base_model("m")
    BaseModel.objects.filter(pk=made.pk).update(path=str(model_dir), texts=TEXTS)
    made.refresh_from_db()
    return made


@pytest.fixture
def publisher(db: None) -> Organization:
    return make_organization(SECRET)


@pytest.fixture
def original(model: BaseModel, publisher: Organization, tmp_path: Path, model_dir: Path) -> Speculator:
    return make_original(model, publisher, tmp_path / "original", model_dir)


@pytest.fixture
def base(original: Speculator) -> BaseSpeculator:
    return base_speculator_publish(speculator=original, name="general", description="a general mix")


def make_original(
    model: BaseModel, publisher: Organization, folder: Path, model_dir: Path, kind: str = "medusa"
) -> Speculator:
    """Makes a speculator. Its database row and files contain SECRET wherever training may store customer data."""
    write_speculator(kind, folder, model_dir)
    (folder / "report.json").write_text(json.dumps({"validation_ids": [SECRET]}))
    (folder / "provenance.json").write_text(json.dumps({"data_sha256": SECRET, "target_revision": model.revision}))
    (folder / "plots").mkdir()
    (folder / "plots" / "loss.svg").write_text(SECRET)
    made = make_speculator(
        model,
        publisher,
        name=f"{SECRET}-{kind}",
        kind=kind,
        target_texts=TEXTS,
        storage_prefix=f"{publisher.pk}/{SECRET}/{kind}",
        training={"validation_ids": [SECRET]},
        report={"first_divergences": [{"custom_id": SECRET}]},
    )
    get_storage().put_folder(made.storage_prefix, folder)
    return made


def post(client: Client, path: str, body: dict[str, Any], *, status: int = 201) -> Any:
    response = client.post(path, body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def deploy(client: Client, base: BaseSpeculator, *, status: int = 201, **body: Any) -> Any:
    request = {"name": "fast", "model": "m", "speculator_id": base.pk, **body}
    return post(client, "/v1/deployments", request, status=status)


def stored_bytes(prefix: str) -> Iterator[bytes]:
    for name in get_storage().sizes(prefix):
        with get_storage().open(name if name.startswith(prefix) else f"{prefix}/{name}") as file:
            yield name.encode() + file.read()


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


@pytest.mark.parametrize("kind", [kind for kind in TRAINED_KINDS if kind not in OUTPUT_CHANGING_KINDS])
def test_a_published_speculator_has_the_tensors_of_the_original_and_nothing_of_its_lineage(
    kind: str, model: BaseModel, publisher: Organization, tmp_path: Path, model_dir: Path
) -> None:
    original = make_original(model, publisher, tmp_path / "original", model_dir, kind)

    base = base_speculator_publish(speculator=original, name="general")

    get_storage().get_folder(base.storage_prefix, tmp_path / "published")
    before, after = Artifact.read(tmp_path / "original"), Artifact.read(tmp_path / "published")
    assert (after.kind, after.config) == (kind, before.config)
    weights, published = tensors_of(tmp_path / "original"), tensors_of(tmp_path / "published")
    assert weights.keys() == published.keys()
    assert all(torch.equal(tensor, published[name]) for name, tensor in weights.items())
    contents = list(stored_bytes(base.storage_prefix))
    assert len(contents) >= 3
    row = str(BaseSpeculator.objects.values().get(pk=base.pk)).encode()
    for secret in (SECRET, publisher.pk, original.pk):
        assert not any(secret.encode() in content for content in [*contents, row]), secret
    assert json.loads((tmp_path / "published" / "provenance.json").read_text()) == {
        "target_revision": model.revision,
        **TEXTS,
    }


def test_versions_are_counted_for_each_name_and_every_organization_lists_them(
    original: Speculator, base: BaseSpeculator, client: Client
) -> None:
    again = base_speculator_publish(speculator=original, name="general")
    other = base_speculator_publish(speculator=original, name="other")

    listed = client.get("/v1/base_speculators").json()["data"]

    assert {(row["id"], row["name"], row["version"]) for row in listed} == {
        (base.pk, "general", 1), (again.pk, "general", 2), (other.pk, "other", 1),
    }  # fmt: skip
    assert listed[-1] | {"created_at": 0} == {
        "id": base.pk, "object": "base_speculator", "name": "general", "version": 1, "kind": "medusa",
        "description": "a general mix", "model": "m", "target_revision": base.target_revision, "created_at": 0,
    }  # fmt: skip


def test_any_organization_uses_a_base_speculator_and_sees_nothing_of_the_publisher(
    base: BaseSpeculator, organization: Organization, client: Client
) -> None:
    prompts = make_file(organization, [chat_row(f"row-{n}", content=f"prompt {n}") for n in range(20)])
    training = {"kind": "medusa", "initial_speculator": base.pk}

    deployment = deploy(client, base)
    evaluation = post(client, "/v1/evaluations", {"speculator_id": base.pk, "prompts_file": prompts.pk})
    body = {"name": "own", "model": "m", "prompts_file": prompts.pk, "training": training}
    pipeline = end_batch(Pipeline.objects.get(pk=post(client, "/v1/pipelines", body)["id"]))

    use = Speculator.objects.get(organization=organization, base_speculator=base)
    assert deployment["speculator_id"] == evaluation["speculator_id"] == use.pk
    assert Job.objects.get(pk=pipeline.training_job_id).params["initial_speculator_id"] == use.pk
    seen = client.get(f"/v1/speculators/{use.pk}").json()
    assert (seen["base_speculator_id"], seen["training"], seen["report"]) == (base.pk, {"method": "medusa"}, {})
    paths = ["base_speculators", "speculators", "deployments", "evaluations", "pipelines", "events"]
    for response in [client.get(f"/v1/{path}").content for path in paths]:
        assert SECRET.encode() not in response


def test_an_organization_has_one_use_of_a_base_speculator_although_two_requests_create_it(
    base: BaseSpeculator, organization: Organization
) -> None:
    first, second = (base_speculator_use(organization=organization, base_speculator=base) for _ in range(2))

    assert first == second
    assert Speculator.objects.filter(base_speculator=base).count() == 1


def test_the_first_use_leaves_its_own_audit_event(
    base: BaseSpeculator, organization: Organization, client: Client
) -> None:
    deploy(client, base)
    deploy(client, base, name="another")

    events = AuditEvent.objects.filter(organization_id=organization.pk).values_list("action", flat=True)
    assert sorted(events) == ["deployment.create", "deployment.create", "speculator.use"]


def test_a_project_sees_only_its_own_use_of_a_base_speculator(base: BaseSpeculator, organization: Organization) -> None:
    clients = [client_of(organization, project=project_create(organization=organization, name=n)) for n in ("a", "b")]
    ids = [deploy(client, base, name=f"fast-{n}")["speculator_id"] for n, client in enumerate(clients)]

    assert ids[0] != ids[1]
    assert [clients[0].get(f"/v1/speculators/{identity}").status_code for identity in ids] == [200, 404]
    assert client_of(make_organization()).get(f"/v1/speculators/{ids[0]}").status_code == 404


def test_planning_with_a_base_speculator_creates_nothing(
    base: BaseSpeculator, organization: Organization, client: Client
) -> None:
    deploy(client, base, validate_only=True, status=200)
    evaluation = {"speculator_id": base.pk, "validate_only": True}
    post(client, "/v1/evaluations", evaluation, status=200)

    assert not Speculator.objects.filter(organization=organization).exists()


def test_the_deletion_of_the_original_leaves_the_published_files(
    original: Speculator,
    base: BaseSpeculator,
    publisher: Organization,
    client: Client,
    tmp_path: Path,
    django_capture_on_commit_callbacks: Any,
) -> None:
    use = Speculator.objects.get(pk=deploy(client, base)["speculator_id"])

    with django_capture_on_commit_callbacks(execute=True):
        assert client_of(publisher).delete(f"/v1/speculators/{original.pk}").status_code == 200
    publisher.delete()

    assert not get_storage().sizes(original.storage_prefix)
    folder = stage_speculator(use, tmp_path / "staged")
    assert Artifact.read(Path(str(folder))).kind == "medusa"


def test_the_deletion_of_a_use_does_not_delete_the_files_of_the_base_speculator(
    base: BaseSpeculator, organization: Organization, client: Client, django_capture_on_commit_callbacks: Any
) -> None:
    use = base_speculator_use(organization=organization, base_speculator=base)
    before = get_storage().sizes(base.storage_prefix)

    with django_capture_on_commit_callbacks(execute=True):
        assert client.delete(f"/v1/speculators/{use.pk}").status_code == 200

    assert get_storage().sizes(base.storage_prefix) == before != {}
    # the previous release deletes all objects under the row's own prefix, so there must be none
    assert not get_storage().sizes(use.storage_prefix)
    assert not base.storage_prefix.startswith(use.storage_prefix)
    assert deploy(client, base)["speculator_id"] != use.pk


def test_a_withdrawn_base_speculator_remains_available_to_organizations_that_use_it(
    base: BaseSpeculator, client: Client, other_organization: Organization, tmp_path: Path
) -> None:
    used = deploy(client, base)["speculator_id"]
    call_command("base_speculator_withdraw", base.pk)

    assert client.get("/v1/base_speculators").json()["data"] == []
    refused = deploy(client_of(other_organization), base, status=404)
    assert refused["error"]["code"] == "speculator_not_found"
    deploy(client, base, name="second", speculator_id=used)
    assert stage_speculator(Speculator.objects.get(pk=used), tmp_path / "staged") is not None
    with pytest.raises(CommandError, match="No such speculator"):
        call_command("base_speculator_withdraw", base.pk)


@pytest.mark.parametrize(
    "changes", [{"revision": "1" * 64}, {"texts": {**TEXTS, "tokenizer_sha256": "c"}},
                {"texts": {**TEXTS, "chat_template_sha256": "c"}}], ids=["revision", "tokenizer", "template"],
)  # fmt: skip
def test_another_revision_tokenizer_or_template_is_refused(
    changes: dict[str, Any], original: Speculator, base: BaseSpeculator, client: Client
) -> None:
    BaseModel.objects.filter(pk=base.base_model_id).update(**changes)

    assert deploy(client, base, status=409)["error"]["code"] == "speculator_mismatch"
    assert not Deployment.objects.exists()
    original.base_model.refresh_from_db()
    with pytest.raises(ApiError, match="was trained"):
        base_speculator_publish(speculator=original, name="general")


def test_the_draft_vocabulary_of_a_base_speculator_cannot_be_exported(
    base: BaseSpeculator, organization: Organization, client: Client
) -> None:
    use = base_speculator_use(organization=organization, base_speculator=base)

    refused = post(client, f"/v1/speculators/{use.pk}/export", {"format": "medusa"}, status=409)

    assert refused["error"]["code"] == "speculator_not_exportable"


def test_speculators_that_cannot_be_shared_are_refused(
    model: BaseModel, original: Speculator, publisher: Organization, tmp_path: Path, model_dir: Path
) -> None:
    adapter = make_original(model, publisher, tmp_path / "adapter", model_dir, "turbo_lora")
    use = base_speculator_use(
        organization=publisher, base_speculator=base_speculator_publish(speculator=original, name="general")
    )
    private = make_speculator(make_base_model("private", publisher), publisher, name="p", storage_prefix="p")
    get_storage().put_folder("p", write_speculator("medusa", tmp_path / "p", model_dir))
    num_files = len(get_storage().sizes("base_speculators"))

    for refused, code in ((adapter, "output_change"), (use, "already_published"), (private, "model_not_shared")):
        with pytest.raises(ApiError) as error:
            base_speculator_publish(speculator=refused, name="general")
        assert error.value.code == code
    assert BaseSpeculator.objects.count() == 1
    assert len(get_storage().sizes("base_speculators")) == num_files


def test_operators_publish_a_folder_of_our_training_or_of_another_format(
    model: BaseModel, tmp_path: Path, model_dir: Path
) -> None:
    folder = write_speculator("eagle3", tmp_path / "own", model_dir)
    (folder / "provenance.json").write_text(json.dumps({"target_revision": model.revision, "data_sha256": SECRET}))

    call_command("base_speculator_publish", "general", folder=folder, model="m")

    made = BaseSpeculator.objects.get()
    assert (made.kind, made.target_revision, made.target_texts) == ("eagle3", model.revision, None)
    foreign = json.loads((folder / "provenance.json").read_text()) | {"target_revision": "1" * 64}
    (folder / "provenance.json").write_text(json.dumps(foreign))
    with pytest.raises(CommandError, match="was trained for revision"):
        call_command("base_speculator_publish", "general", folder=folder, model="m")
    with pytest.raises(ApiError, match="speculators_model_type"):
        base_speculator_import(
            folder=write_speculator("medusa", tmp_path / "medusa", model_dir),
            form="speculators",
            base_model=model,
            name="general",
        )


def test_withdrawing_twice_keeps_the_first_time(base: BaseSpeculator) -> None:
    base_speculator_withdraw(base_speculator=base)
    base.refresh_from_db()
    first = base.withdrawn_at
    base_speculator_withdraw(base_speculator=base)
    base.refresh_from_db()

    assert base.withdrawn_at == first is not None
