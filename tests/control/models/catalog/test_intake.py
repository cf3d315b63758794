"""Customers register base models from allowed sources, and a worker checks the files of a model before it is used."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from moto import mock_aws

from control.core.api.errors import ApiError
from control.core.settings.config import Config
from control.core.storage import backends as storage_module
from control.core.storage.backends import S3Storage
from control.models.catalog.folder import UnusableModel
from control.models.catalog.models import BaseModel
from control.models.catalog.selectors import base_model_get
from control.models.catalog.sources import is_allowed, model_folder
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_cancel, job_claim_next
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from tests.control.factories import make_base_model
from tests.control.models.catalog.test_folder import TENSOR, make_folder, safetensors
from tests.tiny_model import make_tiny_model, train_tiny_model
from workers.contracts import FailureClass, Finished
from workers.inference.perplexity import TEXT
from workers.supervisor import model_check
from workers.supervisor.attempt import run_attempt
from workers.supervisor.outcomes import AttemptFailed
from workers.supervisor.run_child import run_child
from workers.supervisor.worker import HANDLERS


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which each organization may register models from the subfolder that is named after its id."""
    root = tmp_path / "roots"
    root.mkdir()
    config = Config(data_dir=tmp_path / "data", model_roots=f"{root}/{{organization}}, s3://models/{{organization}}")
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    return root


@pytest.fixture(autouse=True)
def child_result(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replaces the child process that measures perplexity, because the tests' folders hold no real weights.

    Returns: the result of the replacement, which a test may change.
    """
    result = {"perplexity": 12.5, "num_tokens": 170, "num_bytes": 770}
    finished = Finished(result=result, artifacts={})
    monkeypatch.setattr(model_check, "run_child", lambda *arguments, **options: finished)
    return result


@pytest.fixture
def bucket(roots: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Storage]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    storage_module._s3_client.cache_clear()
    with mock_aws():
        s3 = S3Storage(Config(s3_bucket="models"))
        s3._client.create_bucket(Bucket="models")
        yield s3
    storage_module._s3_client.cache_clear()


def register(client: Client, source: str | Path, *, name: str = "mine", status: int = 201) -> Any:
    response = client.post("/v1/base_models", {"name": name, "source": str(source)}, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def run_check() -> None:
    """Checks the model, as a worker does."""
    claim = job_claim_next(worker="w")
    assert claim is not None
    run_attempt(claim, stop=threading.Event(), handlers=HANDLERS)


def get_model(client: Client, model: Any) -> Any:
    return client.get(f"/v1/base_models/{model['id']}").json()


def test_a_worker_checks_a_folder_and_then_its_model_is_ready(
    client: Client, organization: Organization, roots: Path
) -> None:
    folder = make_folder(roots / organization.pk / "llama")

    made = register(client, folder)

    assert (made["status"], made["revision"], made["model_type"]) == ("checking", None, None)
    with pytest.raises(ApiError):
        base_model_get(organization, "mine")
    run_check()
    ready = get_model(client, made)
    assert (ready["status"], ready["model_type"], len(ready["revision"])) == ("ready", "llama", 64)
    assert (made["perplexity"], ready["perplexity"]) == (None, 12.5)
    assert model_folder(base_model_get(organization, "mine")) == folder
    assert Event.objects.filter(type="base_model.ready", object_id=made["id"]).count() == 1
    assert Job.objects.get().status == Job.Status.SUCCEEDED


def test_a_folder_that_becomes_a_link_to_another_organizations_folder_is_not_served(
    client: Client, organization: Organization, roots: Path
) -> None:
    """If this folder were served, a customer could serve unchecked files from anywhere on the machine."""
    foreign_folder = make_folder(roots / "another-organization" / "secret")
    folder = make_folder(roots / organization.pk / "llama")
    register(client, folder)
    run_check()
    model = base_model_get(organization, "mine")
    weights = next(folder.glob("*.safetensors"))

    weights.unlink()
    weights.symlink_to(next(foreign_folder.glob("*.safetensors")))
    with pytest.raises(UnusableModel, match="symbolic link"):
        model_folder(model)

    shutil.rmtree(folder)
    folder.symlink_to(foreign_folder)
    with pytest.raises(UnusableModel, match="symbolic link"):
        model_folder(model)


def test_a_refusal_names_the_requested_folder_and_not_the_target_of_its_link(
    client: Client, organization: Organization, roots: Path
) -> None:
    disk = roots / organization.pk / "disk-7"
    disk.mkdir(parents=True)
    link = roots / organization.pk / "llama"
    link.symlink_to(disk)

    made = register(client, link)
    run_check()

    message = get_model(client, made)["error"]["message"]
    assert str(link) in message
    assert "disk-7" not in message


def test_a_folder_with_code_is_refused_with_a_reason(client: Client, organization: Organization, roots: Path) -> None:
    shared = make_base_model("mine")
    folder = make_folder(roots / organization.pk / "llama")
    (folder / "modeling.py").write_text("")

    made = register(client, folder)
    run_check()

    refused = get_model(client, made)
    assert (refused["status"], refused["error"]["code"]) == ("refused", "model_file_forbidden")
    assert base_model_get(organization, "mine") == shared, "a refused model hides no shared model"
    assert client.delete(f"/v1/base_models/{made['id']}").json()["deleted"]
    register(client, folder)


def test_a_model_with_an_implausible_perplexity_is_refused_and_the_error_states_it(
    client: Client, organization: Organization, roots: Path, child_result: dict[str, Any]
) -> None:
    child_result["perplexity"] = 49_152.0
    made = register(client, make_folder(roots / organization.pk / "llama"))
    run_check()

    refused = get_model(client, made)
    assert (refused["status"], refused["error"]["code"]) == ("refused", "implausible_perplexity")
    assert "49,152.0" in refused["error"]["message"]


def test_operators_can_allow_a_higher_perplexity(
    client: Client,
    organization: Organization,
    roots: Path,
    child_result: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = settings.SLIPSTREAM.model_copy(update={"max_model_bits_per_byte": 8.5})
    monkeypatch.setattr(settings, "SLIPSTREAM", config)
    child_result["perplexity"] = 49_152.0
    made = register(client, make_folder(roots / organization.pk / "llama"))
    run_check()

    assert get_model(client, made)["status"] == "ready"


def test_a_model_that_the_engine_cannot_load_is_refused_without_naming_internal_folders(
    client: Client, organization: Organization, bucket: S3Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(attempt: Any, spec: Any, **_: Any) -> None:
        message = f"weights in {spec.model_dir} can't be read"
        raise AttemptFailed(FailureClass.USER_CONFIG, "model_not_loadable", message)

    monkeypatch.setattr(model_check, "run_child", fail)
    bucket.put_folder(f"{organization.pk}/llama", make_folder(tmp_path / "made"))
    made = register(client, f"s3://models/{organization.pk}/llama")
    run_check()

    refused = get_model(client, made)
    assert (refused["status"], refused["error"]["code"]) == ("refused", "model_not_loadable")
    assert str(tmp_path) not in refused["error"]["message"]


@pytest.mark.django_db(transaction=True)  # the lease is renewed by a thread, with a connection of its own
@pytest.mark.parametrize("is_trained", [True, False])
def test_a_real_child_process_measures_the_perplexity(
    client: Client, organization: Organization, roots: Path, monkeypatch: pytest.MonkeyPatch, is_trained: bool
) -> None:
    monkeypatch.setattr(model_check, "run_child", run_child)
    folder = make_tiny_model(roots / organization.pk / "tiny")
    if is_trained:
        train_tiny_model(folder, TEXT)
    made = register(client, folder)
    run_check()

    checked = get_model(client, made)
    if is_trained:
        assert checked["status"] == "ready"
        assert 1.0 < checked["perplexity"] < 10.0
    else:
        assert checked["error"]["code"] == "implausible_perplexity"


def test_each_machine_fetches_models_from_s3_by_itself(
    client: Client, organization: Organization, bucket: S3Storage, tmp_path: Path
) -> None:
    prefix = f"{organization.pk}/llama"
    bucket.put_folder(prefix, make_folder(tmp_path / "made"))
    made = register(client, f"s3://models/{prefix}")
    run_check()
    model = base_model_get(organization, "mine")

    assert (model_folder(model) / "config.json").is_file()
    fetched = model_folder(model)
    for file in fetched.iterdir():
        file.unlink()
    fetched.rmdir()  # as on another machine, which has not fetched the model yet
    assert sorted(path.name for path in model_folder(model).iterdir()) == sorted(
        path.name for path in (tmp_path / "made").iterdir()
    )

    for file in fetched.iterdir():
        file.unlink()
    fetched.rmdir()
    (tmp_path / "made" / "model.safetensors").write_bytes(safetensors({"other": TENSOR}, 24))
    bucket.put_folder(prefix, tmp_path / "made")
    with pytest.raises(UnusableModel, match="other weights"):
        model_folder(model)
    assert get_model(client, made)["status"] == "ready"


@pytest.mark.parametrize("name", ["evil.py", "sub/x.json"])
def test_a_folder_in_s3_with_a_forbidden_file_is_not_fetched(
    client: Client, organization: Organization, bucket: S3Storage, tmp_path: Path, name: str
) -> None:
    folder = make_folder(tmp_path / "made")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{}")
    bucket.put_folder(f"{organization.pk}/m", folder)

    made = register(client, f"s3://models/{organization.pk}/m")
    run_check()

    refused = get_model(client, made)
    assert (refused["status"], refused["error"]["code"]) == ("refused", "model_file_forbidden")
    assert str(tmp_path) not in refused["error"]["message"]
    assert not any(path.is_dir() for path in (tmp_path / "data" / "models").iterdir())


def test_a_missing_source_is_refused_without_naming_internal_folders(
    client: Client, organization: Organization, bucket: S3Storage, tmp_path: Path
) -> None:
    made = register(client, f"s3://models/{organization.pk}/nothing")
    run_check()

    refused = get_model(client, made)
    assert refused["status"] == "refused"
    assert str(tmp_path) not in refused["error"]["message"]


def test_a_model_whose_check_is_cancelled_is_refused(client: Client, organization: Organization, roots: Path) -> None:
    made = register(client, make_folder(roots / organization.pk / "m"))
    job_cancel(job=Job.objects.get())
    run_check()

    assert get_model(client, made)["error"]["code"] == "cancelled"


@pytest.mark.parametrize(
    "source",
    [
        "{root}", "{root}/other", "{root}/{own}/../other", "{root}/{own}x", "{own}", "/etc", "", "x\0y", "s3://models",
        "s3://models/other/m", "s3://models/{own}/../other", "s3://models/{own}x", "s3://other/{own}", "http://models/",
    ],
)  # fmt: skip
def test_a_source_outside_of_the_model_roots_is_refused(
    client: Client, organization: Organization, roots: Path, source: str
) -> None:
    source_path = source.format(root=roots, own=organization.pk)

    register(client, source_path, status=400)

    assert not is_allowed(source_path, organization_id=organization.pk)
    assert not BaseModel.objects.exists()


def test_a_link_that_leads_out_of_the_model_roots_is_refused(
    client: Client, organization: Organization, roots: Path, tmp_path: Path
) -> None:
    (roots / organization.pk).mkdir()
    (roots / organization.pk / "link").symlink_to(make_folder(tmp_path / "elsewhere"))

    refused = register(client, roots / organization.pk / "link", status=400)

    assert refused["error"]["code"] == "source_not_allowed"


def test_models_in_use_and_shared_models_cannot_be_deleted(
    client: Client, organization: Organization, roots: Path
) -> None:
    shared = make_base_model("shared")
    own = make_base_model("own", organization)
    own.deployments.create(organization=organization, name="endpoint")

    for model, status in ((shared, 403), (own, 409)):
        assert client.delete(f"/v1/base_models/{model.pk}").status_code == status
    register(client, roots / organization.pk / "m", name="own", status=409)


def test_a_stored_error_of_an_unknown_shape_is_returned_unchanged(client: Client, organization: Organization) -> None:
    model = make_base_model(organization=organization)
    BaseModel.objects.update(status=BaseModel.Status.REFUSED, error={"reason": "no weights"})

    assert client.get(f"/v1/base_models/{model.pk}").json()["error"] == {"reason": "no weights"}
