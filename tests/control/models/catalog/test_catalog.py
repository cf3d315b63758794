"""Base models and speculators: their versions, and the organizations that can see them."""

from pathlib import Path

import pytest
from django.test import Client

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel, Speculator
from control.models.catalog.selectors import base_model_get
from control.models.catalog.services import (
    base_model_register,
    speculator_create,
    speculator_fail,
    speculator_ready,
    speculator_report,
)
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model, make_organization
from tests.control.models.catalog.test_folder import TENSOR, make_folder, safetensors
from workers.model_folders import changed_texts


def make_speculator(organization: Organization, name: str = "fast") -> Speculator:
    return speculator_create(
        organization=organization, base_model=make_base_model(organization=organization), name=name, kind="medusa"
    )


def model_ids(client: Client) -> list[str]:
    return [model["id"] for model in client.get("/v1/models").json()["data"]]


def test_registering_the_same_weights_again_updates_the_path_of_the_same_model(db: None, tmp_path: Path) -> None:
    first = base_model_register(name="tiny", path=make_folder(tmp_path / "a"))
    repeated = base_model_register(name="tiny", path=make_folder(tmp_path / "b"))

    assert repeated.pk == first.pk
    assert repeated.path == str(tmp_path / "b")
    assert BaseModel.objects.count() == 1


def test_other_weights_under_an_existing_name_are_refused(db: None, tmp_path: Path) -> None:
    base_model_register(name="tiny", path=make_folder(tmp_path / "a"))
    other = make_folder(tmp_path / "b")
    (other / "model.safetensors").write_bytes(safetensors({"other": TENSOR}, 24))

    with pytest.raises(ApiError) as refused:
        base_model_register(name="tiny", path=other)

    assert (refused.value.status, refused.value.code) == (409, "name_taken")


def test_a_refused_folder_creates_no_model(db: None, tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    (folder / "evil.py").write_text("")

    with pytest.raises(ApiError) as refused:
        base_model_register(name="tiny", path=folder)

    assert (refused.value.status, refused.value.code) == (400, "model_file_forbidden")
    assert not BaseModel.objects.exists()


def test_the_list_of_models_contains_shared_models_own_models_and_own_deployments(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    shared = make_base_model("shared")
    make_base_model("own", organization)
    make_base_model("foreign", other_organization)
    Deployment.objects.create(organization=organization, name="endpoint", base_model=shared)
    Deployment.objects.create(organization=other_organization, name="their-endpoint", base_model=shared)

    assert model_ids(client) == ["endpoint", "own", "shared"]
    for name, status in [("own", 200), ("shared", 200), ("endpoint", 200), ("foreign", 404), ("their-endpoint", 404)]:
        assert client.get(f"/v1/models/{name}").status_code == status


def test_an_own_model_hides_a_shared_model_of_the_same_name(db: None) -> None:
    organization, other = make_organization(), make_organization()
    shared, own = make_base_model("tiny"), make_base_model("tiny", organization)

    assert base_model_get(organization, "tiny") == own
    assert base_model_get(other, "tiny") == shared


def test_versions_of_speculators_are_counted_for_each_name_and_organization(db: None) -> None:
    first, second = make_organization(), make_organization()

    made = [make_speculator(first), make_speculator(first), make_speculator(first, "other"), make_speculator(second)]

    assert [speculator.version for speculator in made] == [1, 2, 1, 1]
    assert made[0].target_revision == made[0].base_model.revision


def test_a_speculator_keeps_the_digests_of_the_tokenizer_and_the_chat_template_that_it_was_trained_with(
    tmp_path: Path, db: None
) -> None:
    folder = make_folder(tmp_path / "model")
    model = base_model_register(name="tiny", path=folder)
    trained = speculator_create(organization=make_organization(), base_model=model, name="s", kind="medusa")
    (folder / "chat_template.jinja").write_text("another")
    model = base_model_register(name="tiny", path=folder)

    assert set(trained.target_texts or {}) == {"tokenizer_sha256", "chat_template_sha256"}
    assert changed_texts(trained.target_texts, model.texts) == "chat template"


def test_the_result_of_training_is_written_only_once(db: None) -> None:
    speculator = make_speculator(make_organization())
    speculator_ready(speculator=speculator, storage_prefix="first", training={"steps": 3})

    speculator_fail(speculator=speculator)
    speculator_ready(speculator=speculator, storage_prefix="second", training={})

    assert (speculator.status, speculator.storage_prefix, speculator.training) == ("ready", "first", {"steps": 3})


def test_a_speculator_takes_the_kind_that_its_training_chose(db: None) -> None:
    organization = make_organization()
    chosen = speculator_create(organization=organization, base_model=make_base_model(), name="s", kind="auto")
    speculator_ready(speculator=chosen, storage_prefix="first", training={"method": "eagle3"})

    assert Speculator.objects.get(pk=chosen.pk).kind == "eagle3"


def test_an_organization_sees_only_reports_and_plots_of_its_own_speculators(
    client: Client, organization: Organization, other_organization: Organization, tmp_path: Path
) -> None:
    (tmp_path / "plot.png").write_bytes(b"\x89PNG")
    own_speculator, foreign = make_speculator(organization), make_speculator(other_organization)
    path = f"/v1/speculators/{own_speculator.pk}"
    assert client.get(f"{path}/plot").status_code == 404
    for speculator in (own_speculator, foreign):
        key = f"plots/{speculator.pk}.png"
        get_storage().put_file(key, tmp_path / "plot.png")
        speculator_report(speculator=speculator, report={"speedup": 1.4}, plot_key=key)

    body = client.get(path).json()
    plot = client.get(f"{path}/plot")

    assert (body["report"], body["object"], body["version"]) == ({"speedup": 1.4}, "speculator", 1)
    assert (plot["Content-Type"], plot.getvalue()) == ("image/png", b"\x89PNG")
    assert [item["id"] for item in client.get("/v1/speculators").json()["data"]] == [own_speculator.pk]
    for suffix in ("", "/plot"):
        assert client.get(f"/v1/speculators/{foreign.pk}{suffix}").status_code == 404


def test_base_models_are_shown_with_their_revision(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    shared, own = make_base_model("shared"), make_base_model("own", organization)
    foreign = make_base_model("theirs", other_organization)

    body = {model["name"]: model for model in client.get("/v1/base_models").json()["data"]}

    assert {name: model["is_shared"] for name, model in body.items()} == {"shared": True, "own": False}
    assert body["own"]["revision"] == own.revision
    assert client.get(f"/v1/base_models/{own.pk}").json() == body["own"]
    assert client.get(f"/v1/base_models/{shared.pk}").json() == body["shared"]
    assert client.get(f"/v1/base_models/{foreign.pk}").status_code == 404
