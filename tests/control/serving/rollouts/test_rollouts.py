"""Tests when a new speculator is promoted or rolled back, and which engine gets requests during its rollout.

During a rollout, a second deployment (the canary) serves the new speculator to a share of the requests.
"""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.models.catalog.models import Speculator
from control.serving.deployments.measuring import COUNTERS, sample_keep
from control.serving.deployments.models import Deployment, DeploymentSample, Replica
from control.serving.deployments.services import deployment_stop, deployment_update
from control.serving.gateway.routes import OpenByTarget, Route, route_read
from control.serving.rollouts.decision import Figures, Terms, decide
from control.serving.rollouts.models import Rollout
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from tests.control.factories import make_base_model, make_key
from tests.control.serving.deployments.support import make_speculator

State = Deployment.State
TERMS = Terms(min_requests=100, max_acceptance_drop=0.1, max_error_rate=0.02)


def figures(num_requests: int = 100, acceptance: float | None = 2.0, num_failed: int = 0) -> Figures:
    return Figures(num_requests=num_requests, num_failed=num_failed, acceptance_length=acceptance)


@pytest.mark.parametrize(
    ("canary", "stable", "code"),
    [
        (figures(99), figures(), None),
        (figures(100), figures(), "accepted"),
        (figures(acceptance=1.8), figures(), "accepted"),
        (figures(acceptance=1.79), figures(), "acceptance_dropped"),
        (figures(acceptance=None), figures(acceptance=None), "accepted"),
        (figures(acceptance=None), figures(), "acceptance_dropped"),
        (figures(98, num_failed=2), figures(), "accepted"),
        (figures(97, num_failed=3), figures(), "too_many_errors"),
        (figures(97, num_failed=3), figures(90, num_failed=10), "accepted"),
        (figures(0, num_failed=2), figures(), None),
        (figures(0, num_failed=3), figures(), "too_many_errors"),
    ],
)
def test_the_decision_depends_on_acceptance_length_and_error_rate(
    canary: Figures, stable: Figures, code: str | None
) -> None:
    """The canary's error rate may be 2 %, or that of the stable deployment if that is higher.

    The canary's acceptance length may be 10 % shorter than that of the stable deployment.
    """
    decision = decide(canary, stable, TERMS)

    assert (decision.code if decision else None) == code
    assert decision is None or decision.is_promoted == (code == "accepted")


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    model = make_base_model()
    old = make_speculator(model, organization, version=1)
    made = Deployment.objects.create(organization=organization, name="support", base_model=model, speculator=old)
    return update_deployment(made, state=State.READY, port=1)


@pytest.fixture
def new_speculator(deployment: Deployment, organization: Organization) -> Speculator:
    return make_speculator(deployment.base_model, organization, version=2)


def start_rollout(
    client: Client, deployment: Deployment, new_speculator: Speculator, *, status: int = 201, **body: Any
) -> Any:
    body = {"speculator_id": new_speculator.pk, "min_requests": 10, "share_percent": 20, **body}
    response = client.post(f"/v1/deployments/{deployment.pk}/rollouts", body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def update_deployment(deployment: Deployment, **values: Any) -> Deployment:
    """Changes the rows of a deployment and its replica as the supervisor does. Args: port: None: no process."""
    if "port" in values:
        port = values.pop("port")
        process = {"port": port, "host": "127.0.0.1", "state": "provisioning" if port is None else "ready"}
        Replica.objects.update_or_create(deployment=deployment, number=0, defaults=process)
    Deployment.objects.filter(pk=deployment.pk).update(**values)
    return Deployment.objects.get(pk=deployment.pk)


def add_samples(deployment: Deployment, *, requests: int, accepted: int, drafts: int = 10) -> None:
    """Adds a sample of the engine's counters at zero, and one after the requests."""
    for factor in (0, 1):
        counters = {**dict.fromkeys(COUNTERS, 0.0), "requests": requests * factor, "drafts": drafts * factor}
        replica, _ = Replica.objects.get_or_create(deployment=deployment, number=0)
        sample_keep(replica=replica, counters={**counters, "accepted_tokens": accepted * factor})


def start_canary(client: Client, deployment: Deployment, new_speculator: Speculator) -> tuple[Any, Deployment]:
    made = start_rollout(client, deployment, new_speculator)
    canary = update_deployment(Rollout.objects.get().canary, state=State.READY, port=2)
    rollouts_reconcile()
    return made, canary


def chosen_id(route: Route) -> str:
    process = route.choose("", OpenByTarget())
    assert process is not None
    return process.deployment_id


def route_of(deployment: Deployment) -> Route:
    return route_read(make_key(deployment.organization)[0], deployment.name)


def get_rollout(client: Client, made: Any) -> Any:
    return client.get(f"/v1/deployments/{made['deployment_id']}/rollouts/{made['id']}").json()


def test_a_better_speculator_is_promoted_without_an_interruption(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, canary = start_canary(client, deployment, new_speculator)
    assert get_rollout(client, made)["status"] == "canary"
    add_samples(deployment, requests=50, accepted=10)
    add_samples(canary, requests=10, accepted=12)
    rollouts_reconcile()

    promoting = get_rollout(client, made)
    assert (promoting["status"], promoting["reason"]["code"]) == ("promoting", "accepted")
    assert promoting["figures"]["canary"]["acceptance_length"] == 2.2  # 1 + 12 accepted tokens / 10 drafts
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
    made, canary = start_canary(client, deployment, new_speculator)
    add_samples(deployment, requests=50, accepted=10)
    add_samples(canary, requests=10, accepted=1)
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
    canary = update_deployment(Rollout.objects.get().canary, state=State.READY, port=2)
    rollouts_reconcile()
    for process in (deployment, canary):
        add_samples(process, requests=20, accepted=20)
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
