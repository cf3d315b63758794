"""The routes of /v1/adapters, and deployments that serve adapters."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoCaptureOnCommitCallbacks

from control.core.storage.backends import get_storage
from control.data.files.services import file_delete
from control.models.adapters.models import Adapter
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_by_name
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model, make_organization
from tests.control.models.adapters.support import make_adapter_files
from tests.control.serving.deployments.support import State, make_served_model, tick_until_state
from tests.control.serving.deployments.test_supervisor import send_request


def register(client: Client, organization: Organization, *, status: int = 201, model: str = "m", **values: Any) -> Any:
    config, weights = make_adapter_files(organization, **values)
    body = {"name": "tone", "model": model, "config_file": config.pk, "weights_file": weights.pk}
    response = client.post("/v1/adapters", body, content_type="application/json")
    assert response.status_code == status, response.content
    for file in (config, weights):
        file_delete(file=file)
    return response.json()


def deploy(client: Client, *, status: int = 201, **body: Any) -> Any:
    body = {"name": "support", "model": "m", **body}
    response = client.post("/v1/deployments", body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def test_an_adapter_remains_when_its_uploaded_files_are_deleted(client: Client, organization: Organization) -> None:
    make_base_model("m")
    made = register(client, organization)

    assert (made["rank"], made["target_modules"], made["model"]) == (2, ["q_proj"], "m")
    assert client.get("/v1/adapters").json()["data"] == [made]
    prefix = Adapter.objects.get().storage_prefix
    with get_storage().open(f"{prefix}/adapter_config.json") as config:
        assert json.loads(config.read())["peft_type"] == "LORA"
    assert get_storage().exists(f"{prefix}/adapter_model.safetensors")
    assert register(client, organization, status=409)["error"]["code"] == "name_taken"


def test_the_error_for_an_unsupported_adapter_names_the_config_file(client: Client, organization: Organization) -> None:
    make_base_model("m")

    refused = register(client, organization, status=400, config={"peft_type": "LORA", "use_dora": True})

    assert (refused["error"]["code"], refused["error"]["param"]) == ("adapter_unusable", "config_file")
    assert not Adapter.objects.exists()


def test_a_deployment_serves_only_adapters_of_its_model(client: Client, organization: Organization) -> None:
    make_base_model("m")
    make_base_model("other")
    tone = register(client, organization)

    body = deploy(client, adapters=[tone["id"], tone["id"]])

    assert body["adapters"] == [{"id": tone["id"], "name": "tone", "model": "support:tone"}]
    assert "support:tone" in [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert deployment_by_name(organization, "support:tone").pk == body["id"]
    with pytest.raises(Exception, match="does not exist"):
        deployment_by_name(organization, "support:none")
    refused = deploy(client, name="b", model="other", adapters=[tone["id"]], status=409)
    assert refused["error"]["code"] == "adapter_mismatch"
    assert not Deployment.objects.filter(name="b").exists()


def test_a_patch_that_names_only_adapters_changes_only_the_deployments_adapters(
    client: Client, organization: Organization, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> None:
    make_base_model("m")
    tone, body = register(client, organization), deploy(client)
    path = f"/v1/deployments/{body['id']}"

    changed = client.patch(path, {"adapters": [tone["id"]]}, content_type="application/json").json()
    assert [adapter["name"] for adapter in changed["adapters"]] == ["tone"]
    assert Deployment.objects.get().generation == 2
    assert client.delete(f"/v1/adapters/{tone['id']}").status_code == 409

    assert client.patch(path, {"adapters": []}, content_type="application/json").json()["adapters"] == []
    assert client.patch(path, {}, content_type="application/json").status_code == 400
    prefix = Adapter.objects.get().storage_prefix
    with django_capture_on_commit_callbacks(execute=True):
        assert client.delete(f"/v1/adapters/{tone['id']}").json()["deleted"]
    assert not Adapter.objects.exists()
    assert not get_storage().exists(f"{prefix}/adapter_model.safetensors")


def test_an_engine_is_started_with_the_adapters_of_its_deployment(
    client: Client, organization: Organization, supervisor: Supervisor, tmp_path: Path
) -> None:
    model = make_served_model(tmp_path / "model", organization=organization)
    tone = register(client, organization, model=model.name)
    body = deploy(client, model=model.name, adapters=[tone["id"]])
    deployment = Deployment.objects.get(pk=body["id"])

    tick_until_state(supervisor, deployment, State.READY)

    (adapter_option,) = send_request(deployment).json()["options"]["adapter"]
    name, _, folder = adapter_option.partition("=")
    assert name == "support:tone"
    assert sorted(path.name for path in Path(folder).iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_requests_name_a_fine_tuned_adapter_without_its_deployment(
    client: Client, organization: Organization, supervisor: Supervisor, tmp_path: Path
) -> None:
    model = make_served_model(tmp_path / "model", organization=organization)
    tuned = register(client, organization, model=model.name)
    name = f"ft:{model.name}:mine:abcdefgh"
    Adapter.objects.update(name=name)
    with pytest.raises(Exception, match=f"No deployment serves '{name}'. Add the adapter {tuned['id']}"):
        deployment_by_name(organization, name)
    stopped, body = (deploy(client, name=each, model=model.name, adapters=[tuned["id"]]) for each in ("a", "b"))
    Deployment.objects.filter(pk=stopped["id"]).update(state=State.STOPPED)
    deployment = Deployment.objects.get(pk=body["id"])

    tick_until_state(supervisor, deployment, State.READY)

    assert body["adapters"][0]["model"] == name
    (option,) = send_request(deployment).json()["options"]["adapter"]
    assert option.rpartition("=")[0] == name
    assert deployment_by_name(organization, name) == deployment  # and not the older one, which has stopped
    models = client.get("/v1/models").json()["data"]
    assert [model["id"] for model in models].count(name) == 1
    assert client.get(f"/v1/models/{name}").json()["id"] == name
    with pytest.raises(Exception, match="does not exist"):
        deployment_by_name(make_organization(), name)
    with pytest.raises(Exception, match="does not exist"):
        deployment_by_name(organization, name + "x")


def test_a_deployment_may_be_named_like_the_prefix_of_fine_tuned_adapters(
    client: Client, organization: Organization
) -> None:
    make_base_model("m")
    tone = register(client, organization)

    body = deploy(client, name="ft", adapters=[tone["id"]])

    assert deployment_by_name(organization, "ft:tone").pk == body["id"]
