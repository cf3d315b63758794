"""The routes of /v1/deployments."""

import pytest
from django.test import Client

from control.models.catalog.models import BaseModel, Speculator
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_create, deployment_delete
from control.serving.deployments.states import MOVES, State, transition
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import make_deployment, make_speculator


def create(client: Client, **body: object) -> tuple[int, dict[str, object]]:
    response = client.post("/v1/deployments", body, content_type="application/json")
    return response.status_code, response.json()


def test_a_deployment_is_created_with_a_name_and_a_model(client: Client, organization: Organization) -> None:
    model = make_base_model()

    status, body = create(client, name="fast", model=model.name)

    assert status == 201
    created_at = body.pop("created_at")
    assert isinstance(created_at, int)
    assert body == {
        "id": Deployment.objects.get().pk,
        "object": "deployment",
        "name": "fast",
        "model": model.name,
        "speculator_id": None,
        "adapters": [],
        "remember_answers": True,
        "hardware": None,
        "engine": {
            "weights": "auto",
            "kv_dtype": "auto",
            "max_context": None,
            "max_concurrency": None,
            "memory_share": None,
            "drafting": None,
            "draft_budget": None,
        },
        "replicas": 1,
        "ready_replicas": 0,
        "scaling": {
            "scale_to_zero_seconds": None,
            "max_replicas": None,
            "min_replicas": 1,
            "target_concurrency": None,
            "scale_up_seconds": 10,
            "scale_down_seconds": 300,
        },
        "acceptance_alarm": {"reference_minutes": 60},
        "desired_state": "running",
        "state": "provisioning",
        "error": None,
        "acceptance": None,
        "blocked": None,
        "healthy_at": None,
    }


@pytest.mark.parametrize("name", ["", "-a", "a b", "a/b", "a" * 65, "ä"])
def test_a_name_that_cannot_be_a_model_name_is_refused(client: Client, name: str) -> None:
    status, body = create(client, name=name, model=make_base_model().name)

    assert status == 400
    error = body["error"]
    assert isinstance(error, dict)
    assert error["param"] == "name"


def test_a_name_is_unique_in_an_organization_until_its_deployment_is_deleted(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    model = make_base_model()
    make_deployment(model, other_organization, "fast")
    first = make_deployment(model, organization, "fast")

    status, body = create(client, name="fast", model=model.name)
    assert (status, body["error"]["code"]) == (409, "name_taken")  # type: ignore[index]

    deployment_delete(deployment=first)
    assert create(client, name="fast", model=model.name)[0] == 201


def test_an_unknown_model_is_not_found(client: Client) -> None:
    status, body = create(client, name="fast", model="nothing")

    assert (status, body["error"]["code"]) == (404, "model_not_found")  # type: ignore[index]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"target_revision": "1" * 64}, "speculator_mismatch"),
        ({"target_texts": {"tokenizer_sha256": "1", "chat_template_sha256": "b"}}, "speculator_mismatch"),
        ({"target_texts": {"tokenizer_sha256": "a", "chat_template_sha256": "1"}}, "speculator_mismatch"),
        ({"status": Speculator.Status.TRAINING}, "speculator_not_ready"),
    ],
)
def test_a_speculator_for_other_weights_or_in_training_is_refused(
    client: Client, organization: Organization, values: dict[str, object], code: str
) -> None:
    model = make_base_model()
    BaseModel.objects.update(texts={"tokenizer_sha256": "a", "chat_template_sha256": "b"})
    speculator = make_speculator(model, organization, **values)

    status, body = create(client, name="fast", model=model.name, speculator_id=speculator.pk)

    assert (status, body["error"]["code"]) == (409, code)  # type: ignore[index]
    assert not Deployment.objects.exists()


@pytest.mark.parametrize(
    ("method", "suffix"), [("get", ""), ("patch", ""), ("delete", ""), ("post", "/start"), ("post", "/stop")]
)
def test_another_organizations_deployment_is_not_found(
    client: Client, other_organization: Organization, method: str, suffix: str
) -> None:
    foreign = make_deployment(make_base_model(), other_organization)
    before = Deployment.objects.values().get()

    response = client.generic(
        method.upper(), f"/v1/deployments/{foreign.pk}{suffix}", '{"speculator_id": null}', "application/json"
    )

    assert response.status_code == 404
    assert response.json()["error"]["code"] == "deployment_not_found"
    assert Deployment.objects.values().get() == before
    assert client.get("/v1/deployments").json()["data"] == []


def test_another_organizations_model_and_speculator_are_not_found(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    foreign_model = make_base_model(organization=other_organization)
    own_model = make_base_model(organization=organization)
    foreign_speculator = make_speculator(own_model, other_organization)

    assert create(client, name="fast", model=foreign_model.name)[0] == 404
    assert create(client, name="fast", model=own_model.name, speculator_id=foreign_speculator.pk)[0] == 404


def test_stop_start_and_delete_change_the_desired_state(client: Client, organization: Organization) -> None:
    deployment = make_deployment(make_base_model(), organization)
    path = f"/v1/deployments/{deployment.pk}"

    stopped = client.post(f"{path}/stop")
    assert (stopped.status_code, stopped.json()["desired_state"], stopped.json()["state"]) == (
        202,
        "stopped",
        "stopping",
    )
    started = client.post(f"{path}/start").json()
    assert (started["desired_state"], started["state"]) == ("running", "provisioning")
    assert client.delete(path).json() == {"id": deployment.pk, "object": "deployment", "deleted": True}
    assert client.get(path).status_code == 404
    assert client.post(f"{path}/start").status_code == 404


def test_starting_a_running_deployment_changes_nothing(client: Client, organization: Organization) -> None:
    deployment = make_deployment(make_base_model(), organization)
    Deployment.objects.update(state=State.READY, observed_generation=1)

    client.post(f"/v1/deployments/{deployment.pk}/start")

    deployment.refresh_from_db()
    assert (deployment.state, deployment.generation) == (State.READY, 1)


@pytest.mark.django_db
@pytest.mark.parametrize("source", list(State))
@pytest.mark.parametrize("to", list(State))
def test_a_deployment_makes_only_legal_transitions(source: Deployment.State, to: Deployment.State) -> None:
    deployment = make_deployment(make_base_model())
    Deployment.objects.update(state=source)

    moved = transition(deployment, to)

    deployment.refresh_from_db()
    assert moved == (to in MOVES[source])
    assert deployment.state == (to if moved else source)


def test_a_failed_creation_leaves_the_callers_transaction_usable(db: None, organization: Organization) -> None:
    model: BaseModel = make_base_model()
    make_deployment(model, organization, "fast")

    with pytest.raises(Exception, match="already a deployment"):
        deployment_create(organization=organization, name="fast", base_model=model)

    assert Deployment.objects.count() == 1


@pytest.mark.parametrize("error", [{"code": "crashed", "exit_code": 1}, "crashed", []])
def test_a_stored_error_of_an_unknown_shape_is_returned_unchanged(
    client: Client, organization: Organization, error: object
) -> None:
    deployment = make_deployment(make_base_model(), organization)
    Deployment.objects.update(error=error)

    assert client.get(f"/v1/deployments/{deployment.pk}").json()["error"] == error
    assert client.get("/v1/deployments").json()["data"][0]["error"] == error


@pytest.mark.parametrize(
    ("old_kind", "new_kind"),
    [("medusa", "turbo_lora"), ("turbo_lora", "eagle3"), ("turbo_lora", "turbo_lora"), ("turbo_lora", None),
     (None, "turbo_lora")],
)  # fmt: skip
def test_an_update_that_changes_answers_needs_allow_output_change(
    client: Client, organization: Organization, old_kind: str | None, new_kind: str | None
) -> None:
    model = make_base_model()
    old, new = (
        None if kind is None else make_speculator(model, organization, version=version, kind=kind)
        for version, kind in enumerate((old_kind, new_kind), start=1)
    )
    deployment = make_deployment(model, organization)
    Deployment.objects.update(speculator=old)
    path, body = f"/v1/deployments/{deployment.pk}", {"speculator_id": None if new is None else new.pk}

    refused = client.patch(path, body, content_type="application/json")

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "output_change")
    assert Deployment.objects.get().speculator == old
    allowed = client.patch(path, {**body, "allow_output_change": True}, content_type="application/json")
    assert (allowed.status_code, allowed.json()["speculator_id"]) == (200, body["speculator_id"])


@pytest.mark.parametrize("new_kind", ["eagle3", None])
def test_an_update_that_keeps_answers_does_not_need_allow_output_change(
    client: Client, organization: Organization, new_kind: str | None
) -> None:
    model = make_base_model()
    old = make_speculator(model, organization, version=1)
    new = None if new_kind is None else make_speculator(model, organization, version=2, kind=new_kind)
    deployment = make_deployment(model, organization)
    Deployment.objects.update(speculator=old)

    body = {"speculator_id": None if new is None else new.pk}
    assert client.patch(f"/v1/deployments/{deployment.pk}", body, content_type="application/json").status_code == 200


def test_remembering_answers_is_switched_off_without_a_restart(client: Client, organization: Organization) -> None:
    deployment = make_deployment(make_base_model(), organization)
    path = f"/v1/deployments/{deployment.pk}"

    changed = client.patch(path, {"remember_answers": False}, content_type="application/json")

    assert client.get(path).json() == changed.json()
    assert (deployment.remember_answers, changed.json()["remember_answers"]) == (True, False)
    assert Deployment.objects.get().generation == deployment.generation
    client.patch(path, {"adapters": []}, content_type="application/json")
    assert client.get(path).json()["remember_answers"] is False, "a parameter that is left out does not change"


def test_an_update_without_values_is_refused(client: Client, organization: Organization) -> None:
    deployment = make_deployment(make_base_model(), organization)

    response = client.patch(f"/v1/deployments/{deployment.pk}", {}, content_type="application/json")

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("missing_required_parameter", "speculator_id")
