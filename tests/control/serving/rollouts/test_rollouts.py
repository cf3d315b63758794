"""Tests when a new speculator is promoted or rolled back, and which engine gets requests during its rollout.

During a rollout, a second deployment (the canary) serves the new speculator to a share of the requests.
"""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment, DeploymentSample, Replica
from control.serving.deployments.services import deployment_stop, deployment_update
from control.serving.gateway.routes import OpenByTarget, Route, route_read
from control.serving.rollouts.evidence import Side, evidence_of
from control.serving.rollouts.models import Rollout, RolloutEvidence
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from slipstream.certificates import ROLLOUT_FORMAT, verify
from slipstream.errors import CertificateError
from tests.control.factories import make_base_model, make_key
from tests.control.serving.deployments.support import make_speculator
from tests.control.serving.rollouts.support import add_better_canary, add_evidence

State = Deployment.State


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


def start_canary(
    client: Client, deployment: Deployment, new_speculator: Speculator, **body: Any
) -> tuple[Any, Deployment]:
    made = start_rollout(client, deployment, new_speculator, **body)
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


def finish_promotion(deployment: Deployment) -> None:
    """The deployment has restarted with the new speculator."""
    update_deployment(deployment, state=State.READY, port=3, observed_generation=2)
    rollouts_reconcile()


def promote(client: Client, deployment: Deployment, new_speculator: Speculator, **body: Any) -> Any:
    made, _ = start_canary(client, deployment, new_speculator, **body)
    add_better_canary(Rollout.objects.get())
    rollouts_reconcile()
    finish_promotion(deployment)
    return made


def test_an_equal_speculator_is_neither_promoted_nor_rolled_back_by_few_requests(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, _ = start_canary(client, deployment, new_speculator)
    add_evidence(Rollout.objects.get(), Side.STABLE, num_requests=50)
    add_evidence(Rollout.objects.get(), Side.CANDIDATE, num_requests=50)
    rollouts_reconcile()

    found = get_rollout(client, made)
    assert (found["status"], found["trial"]["verdict"]["decision"]) == ("canary", "undecided")
    assert found["trial"]["evidence"]["candidate"]["num_requests"] == 50
    assert {gate["name"]: gate["outcome"] for gate in found["trial"]["gates"]} == {
        "acceptance": "open",
        "errors": "open",
    }
    assert found["trial"]["certificate"] is None


@pytest.mark.parametrize("limit", ["max_seconds", "max_requests"])
@pytest.mark.parametrize(("on_undecided", "status"), [("roll_back", "rolled_back"), ("promote", "promoting")])
def test_an_undecided_rollout_ends_by_its_rule(
    client: Client, deployment: Deployment, new_speculator: Speculator, limit: str, on_undecided: str, status: str
) -> None:
    body = {"on_undecided": on_undecided, **({"max_requests": 50} if limit == "max_requests" else {})}
    made, _ = start_canary(client, deployment, new_speculator, **body)
    add_evidence(Rollout.objects.get(), Side.STABLE, num_requests=50)
    add_evidence(Rollout.objects.get(), Side.CANDIDATE, num_requests=50)
    if limit == "max_seconds":
        Rollout.objects.update(started_at=timezone.now() - dt.timedelta(days=2))
    rollouts_reconcile()

    found = get_rollout(client, made)
    assert (found["status"], found["reason"]["code"]) == (status, "undecided")
    assert found["trial"]["verdict"]["message"] == found["reason"]["message"]


def test_one_different_answer_fails_a_shadow_rollout(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, canary = start_canary(client, deployment, new_speculator, mode="shadow")
    assert {chosen_id(route_of(deployment)) for _ in range(100)} == {deployment.pk}, "no caller is answered by it"
    add_better_canary(Rollout.objects.get())
    add_evidence(Rollout.objects.get(), Side.CANDIDATE, num_different=1)
    rollouts_reconcile()

    found = get_rollout(client, made)
    assert (found["status"], found["reason"]["code"]) == ("rolled_back", "answers_differ")
    assert found["trial"]["evidence"]["candidate"]["different_request_id"] == "req_1"
    canary.refresh_from_db()
    assert canary.deleted_at is not None


@pytest.mark.parametrize(("num_equal", "status"), [(9, "canary"), (10, "promoting")])
def test_a_shadow_rollout_is_promoted_after_enough_equal_answers(
    client: Client, deployment: Deployment, new_speculator: Speculator, num_equal: int, status: str
) -> None:
    made, _ = start_canary(client, deployment, new_speculator, mode="shadow")
    rollout = Rollout.objects.get()
    add_evidence(rollout, Side.STABLE, num_requests=400, acceptance_length=2.0)
    add_evidence(rollout, Side.CANDIDATE, num_requests=400, acceptance_length=3.0, num_equal=num_equal)
    rollouts_reconcile()

    assert get_rollout(client, made)["status"] == status


def test_different_answers_do_not_fail_a_shadow_rollout_whose_speculator_may_change_answers(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    Speculator.objects.filter(pk=new_speculator.pk).update(kind="turbo_lora")
    made, _ = start_canary(client, deployment, new_speculator, mode="shadow", allow_output_change=True)
    add_better_canary(Rollout.objects.get())
    add_evidence(Rollout.objects.get(), Side.CANDIDATE, num_different=5)
    rollouts_reconcile()

    found = get_rollout(client, made)
    assert found["status"] == "promoting"
    assert found["trial"]["evidence"]["candidate"]["num_different"] == 5


def test_a_promoted_speculator_that_does_well_is_kept_after_the_watch(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made = promote(client, deployment, new_speculator, watch_seconds=600)
    assert get_rollout(client, made)["status"] == "watching"
    assert start_rollout(client, deployment, new_speculator, status=409)["error"]["code"] == "nothing_to_roll_out"
    add_evidence(Rollout.objects.get(), Side.PROMOTED, num_requests=400, acceptance_length=3.0)
    rollouts_reconcile()
    assert get_rollout(client, made)["status"] == "watching"

    Rollout.objects.update(watched_at=timezone.now() - dt.timedelta(seconds=601))
    rollouts_reconcile()

    found = get_rollout(client, made)
    assert (found["status"], found["watch"]["verdict"]["code"]) == ("promoted", "kept")
    assert found["reason"]["code"] == "accepted"
    types = Event.objects.filter(object_id=made["id"]).order_by("number").values_list("type", flat=True)
    assert list(types)[1:] == ["rollout.promoting", "rollout.watching", "rollout.promoted"]


@pytest.mark.parametrize(
    ("evidence", "code"),
    [
        ({"num_requests": 400, "acceptance_length": 1.2}, "acceptance_dropped"),
        ({"num_requests": 20, "num_failed": 20}, "too_many_errors"),
        ({"num_requests": 200, "first_seconds": 9.0}, "slow_first_token"),
    ],
)
def test_a_promoted_speculator_that_does_worse_is_rolled_back_without_a_request(
    client: Client, deployment: Deployment, new_speculator: Speculator, evidence: dict[str, Any], code: str
) -> None:
    previous = deployment.speculator
    made, _ = start_canary(client, deployment, new_speculator, watch_seconds=600, first_token_seconds=1.0)
    for side in (Side.STABLE, Side.CANDIDATE):
        add_evidence(Rollout.objects.get(), side, num_requests=400, first_seconds=0.1)
    add_evidence(Rollout.objects.get(), Side.CANDIDATE, num_requests=2000, acceptance_length=3.0, first_seconds=0.1)
    rollouts_reconcile()
    finish_promotion(deployment)
    assert get_rollout(client, made)["status"] == "watching"

    add_evidence(Rollout.objects.get(), Side.PROMOTED, **{"acceptance_length": 3.0, **evidence})
    rollouts_reconcile()

    found = get_rollout(client, made)
    assert (found["status"], found["reason"]["code"]) == ("rolled_back", code)
    assert found["watch"]["verdict"]["decision"] == "roll_back"
    assert found["trial"]["verdict"]["decision"] == "promote"
    after = update_deployment(deployment)
    assert (after.speculator, after.generation) == (previous, 3)


def test_a_deployment_that_the_customer_changes_during_the_watch_is_left_as_it_is(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made = promote(client, deployment, new_speculator, watch_seconds=600)
    deployment_update(deployment=update_deployment(deployment), speculator=None)
    add_evidence(Rollout.objects.get(), Side.PROMOTED, num_requests=400, acceptance_length=1.0)
    rollouts_reconcile()

    assert get_rollout(client, made)["reason"]["code"] == "superseded"
    assert update_deployment(deployment).speculator is None


def test_cancelling_a_watch_returns_to_the_previous_speculator(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    previous = deployment.speculator
    made = promote(client, deployment, new_speculator, watch_seconds=600)

    ended = client.post(f"/v1/deployments/{deployment.pk}/rollouts/{made['id']}/cancel").json()

    assert (ended["status"], ended["reason"]["code"]) == ("rolled_back", "cancelled")
    assert update_deployment(deployment).speculator == previous


def test_the_verdict_is_signed_with_its_rules_and_evidence(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, _ = start_canary(client, deployment, new_speculator, max_acceptance_drop=0.1)
    add_better_canary(Rollout.objects.get())
    rollouts_reconcile()
    key = client.get("/v1/certificates/public_key").json()["public_key"]

    certificate = get_rollout(client, made)["trial"]["certificate"]
    statement = verify(certificate, key, kind=ROLLOUT_FORMAT)

    assert statement["rules"]["max_acceptance_drop"] == "0.1"
    assert statement["evidence"]["candidate"]["num_requests"] == 400
    assert (statement["verdict"]["decision"], statement["rollout_id"]) == ("promote", made["id"])
    with pytest.raises(CertificateError, match=r"expected .slipstream\.equality/1"):
        verify(certificate, key)
    certificate["statement"]["evidence"]["candidate"]["num_different"] = 0.0
    certificate["statement"]["evidence"]["candidate"]["num_requests"] = 4000
    with pytest.raises(CertificateError, match="modified"):
        verify(certificate, key, kind=ROLLOUT_FORMAT)


def test_the_evidence_of_several_gateways_is_added_up_and_ends_with_the_trial(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    start_canary(client, deployment, new_speculator)
    rollout = Rollout.objects.get()
    for number in (3, 4):
        add_evidence(rollout, Side.CANDIDATE, num_requests=number, num_failed=1)
    Rollout.objects.update(status=Rollout.Status.ROLLED_BACK)
    add_evidence(rollout, Side.CANDIDATE, num_requests=100)

    found = evidence_of(rollout)[Side.CANDIDATE]
    assert (found.num_requests, found.num_failed, found.passes.num) == (7, 2, 7)
    assert found.passes.mean == pytest.approx(0.5)


def test_a_trial_that_the_previous_release_has_begun_is_decided(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, _ = start_canary(client, deployment, new_speculator)
    RolloutEvidence.objects.all().delete()
    assert Rollout.objects.get().trial is None
    rollouts_reconcile()
    add_better_canary(Rollout.objects.get())
    rollouts_reconcile()

    assert get_rollout(client, made)["status"] == "promoting"
