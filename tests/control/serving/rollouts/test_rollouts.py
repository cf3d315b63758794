"""Tests when a new speculator is promoted or rolled back, and which engine gets requests during its rollout.

During a rollout, a second deployment (the canary) serves the new speculator to a share of the requests.
"""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment, DeploymentSample
from control.serving.deployments.services import deployment_stop, deployment_update
from control.serving.rollouts.evidence import Side
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.events.models import Event
from tests.control.serving.deployments.support import State
from tests.control.serving.rollouts.support import (
    add_better_canary,
    add_evidence,
    chosen_id,
    get_rollout,
    route_of,
    start_canary,
    start_rollout,
    update_deployment,
)


def test_a_better_speculator_is_promoted_without_an_interruption(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, canary = start_canary(client, deployment, new_speculator)
    assert get_rollout(client, made)["status"] == "canary"
    add_better_canary(Rollout.objects.get())
    rollouts_reconcile()

    promoting = get_rollout(client, made)
    assert (promoting["status"], promoting["reason"]["code"]) == ("promoting", "accepted")
    assert promoting["figures"]["canary"]["acceptance_length"] == pytest.approx(3.0)
    deployment.refresh_from_db()
    assert (deployment.speculator, deployment.generation) == (new_speculator, 2)
    restarting = update_deployment(deployment, state=State.PROVISIONING, port=None)
    answering = chosen_id(route_of(restarting))
    assert answering == canary.pk, "the canary gets all requests while the deployment restarts"

    update_deployment(deployment, state=State.READY, port=3, observed_generation=2)
    rollouts_reconcile()
    assert get_rollout(client, made)["status"] == "promoted"
    canary.refresh_from_db()
    assert canary.deleted_at is not None
    event_types = Event.objects.filter(object_id=made["id"]).order_by("number").values_list("type", flat=True)
    assert list(event_types) == ["rollout.canary", "rollout.promoting", "rollout.promoted"]
    assert not Event.objects.filter(object_id=canary.pk).exists()


def test_a_worse_speculator_is_rolled_back_and_the_deployment_is_unchanged(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, _ = start_canary(client, deployment, new_speculator)
    add_evidence(Rollout.objects.get(), Side.STABLE, num_requests=400, acceptance_length=2.0)
    add_evidence(Rollout.objects.get(), Side.CANDIDATE, num_requests=400, acceptance_length=1.5)
    rollouts_reconcile()

    ended = get_rollout(client, made)
    assert (ended["status"], ended["reason"]["code"]) == ("rolled_back", "acceptance_dropped")
    before = deployment.generation
    deployment.refresh_from_db()
    assert (deployment.generation, deployment.speculator_id) == (before, made["previous_speculator_id"])
    assert chosen_id(route_of(deployment)) == deployment.pk
    assert start_rollout(client, deployment, new_speculator)["status"] == "starting"


@pytest.mark.parametrize(
    ("change", "code"), [("crash", "canary_crashed"), ("stop", "deployment_stopped"), ("no speculator", "superseded")]
)
def test_a_rollout_is_rolled_back_after_a_crash_a_stop_or_a_change_of_the_deployment(
    client: Client, deployment: Deployment, new_speculator: Speculator, change: str, code: str
) -> None:
    made, canary = start_canary(client, deployment, new_speculator)
    if change == "crash":
        error = {"code": "engine_exited", "message": "It ended."}
        update_deployment(canary, state=State.PROVISIONING, port=None, error=error)
        canary.replicas.update(crashes=[1.0])
    elif change == "stop":
        deployment_stop(deployment=deployment)
    else:
        deployment_update(deployment=deployment, speculator=None)
    rollouts_reconcile()

    ended = get_rollout(client, made)
    assert (ended["status"], ended["reason"]["code"]) == ("rolled_back", code)


def test_a_canary_without_requests_is_rolled_back(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, _ = start_canary(client, deployment, new_speculator)
    Rollout.objects.update(started_at=timezone.now() - dt.timedelta(days=2))  # the time limit is one day
    rollouts_reconcile()

    assert get_rollout(client, made)["reason"]["code"] == "too_few_requests"


def test_the_canary_gets_its_share_of_the_requests(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    _, canary = start_canary(client, deployment, new_speculator)

    route = route_of(deployment)
    chosen = [chosen_id(route) for _ in range(1000)]

    assert 130 < chosen.count(canary.pk) < 270  # 20 % of the 1000 requests, plus or minus 5 standard deviations
    degraded = update_deployment(canary, state=State.DEGRADED, port=None)
    route = route_of(deployment)
    assert degraded.pk not in [chosen_id(route) for _ in range(50)]


def test_a_canary_is_hidden_from_the_customers_deployments(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    _, canary = start_canary(client, deployment, new_speculator)

    assert [row["id"] for row in client.get("/v1/deployments").json()["data"]] == [deployment.pk]
    assert client.get(f"/v1/deployments/{canary.pk}").status_code == 404
    assert canary.name not in [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert canary.served_name == "support"


def test_a_deployment_has_one_rollout_at_a_time_which_can_be_cancelled(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made = start_rollout(client, deployment, new_speculator)
    assert start_rollout(client, deployment, new_speculator, status=409)["error"]["code"] == "rollout_active"

    path = f"/v1/deployments/{deployment.pk}/rollouts/{made['id']}/cancel"
    assert client.post(path).json()["status"] == "rolled_back"
    assert client.post(path).status_code == 400
    assert client.get(f"/v1/deployments/{deployment.pk}/rollouts").json()["data"][0]["reason"]["code"] == "cancelled"


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"share_percent": 51}, 400, "invalid_value"),
        ({"max_error_rate": 2}, 400, "invalid_value"),
        ({"mode": "mirror"}, 400, "invalid_value"),
        ({"alpha": 0}, 400, "invalid_value"),
        ({"first_token_seconds": 0}, 400, "invalid_value"),
        ({"on_undecided": "wait"}, 400, "invalid_value"),
        ({"speculator_id": "none"}, 404, "speculator_not_found"),
        ({"speculator_id": "the current speculator"}, 409, "nothing_to_roll_out"),
    ],
)
def test_an_invalid_rollout_is_refused(
    client: Client, deployment: Deployment, new_speculator: Speculator, change: dict[str, Any], status: int, code: str
) -> None:
    if change.get("speculator_id") == "the current speculator":
        change = {"speculator_id": deployment.speculator_id}

    assert start_rollout(client, deployment, new_speculator, status=status, **change)["error"]["code"] == code
    assert not Rollout.objects.exists()
    assert DeploymentSample.objects.count() == 0


@pytest.mark.parametrize(("old_kind", "new_kind"), [("medusa", "turbo_lora"), ("turbo_lora", "medusa")])
def test_a_rollout_that_changes_answers_needs_allow_output_change(
    client: Client, deployment: Deployment, new_speculator: Speculator, old_kind: str, new_kind: str
) -> None:
    Speculator.objects.filter(pk=deployment.speculator_id).update(kind=old_kind)
    Speculator.objects.filter(pk=new_speculator.pk).update(kind=new_kind)

    assert start_rollout(client, deployment, new_speculator, status=409)["error"]["code"] == "output_change"
    assert not Rollout.objects.exists()
    start_rollout(client, deployment, new_speculator, allow_output_change=True)


def test_an_allowed_rollout_that_changes_answers_is_promoted(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    Speculator.objects.filter(pk=new_speculator.pk).update(kind="turbo_lora")
    start_rollout(client, deployment, new_speculator, allow_output_change=True)
    update_deployment(Rollout.objects.get().canary, state=State.READY, port=2)
    rollouts_reconcile()
    add_better_canary(Rollout.objects.get())
    rollouts_reconcile()

    assert update_deployment(deployment).speculator_id == new_speculator.pk


def test_a_rollout_on_a_deployment_that_does_not_serve_is_refused(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    update_deployment(deployment, state=State.STOPPED)

    assert start_rollout(client, deployment, new_speculator, status=409)["error"]["code"] == "deployment_not_ready"


def test_figures_of_an_unknown_shape_are_returned_unchanged(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made = start_rollout(client, deployment, new_speculator)
    Rollout.objects.update(figures={"canary": {"requests": 5}}, reason={"code": "worse"})

    response = get_rollout(client, made)

    assert (response["figures"], response["reason"]) == ({"canary": {"requests": 5}}, {"code": "worse"})
