"""Evidence decides a rollout's trial in both modes and the watch after its promotion, and the verdict is signed."""

import datetime as dt
from dataclasses import replace
from typing import Any

import pytest
from django.db import InterfaceError
from django.test import Client
from django.utils import timezone

from control.models.catalog.models import Speculator
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_stop, deployment_update
from control.serving.rollouts import evidence
from control.serving.rollouts.evidence import Side, evidence_of
from control.serving.rollouts.models import Rollout, RolloutEvidence
from control.serving.rollouts.services import rollouts_reconcile
from control.tenants.events.models import Event
from slipstream.certificates import ROLLOUT_FORMAT, verify
from slipstream.errors import CertificateError
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


def finish_promotion(deployment: Deployment) -> None:
    """Marks the deployment as restarted with the new speculator, as a supervisor does."""
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


def test_a_deployment_that_is_stopped_during_the_promotion_leaves_no_canary_behind(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    old = deployment.speculator
    made, canary = start_canary(client, deployment, new_speculator)
    add_better_canary(Rollout.objects.get())
    rollouts_reconcile()
    deployment.refresh_from_db()
    assert (get_rollout(client, made)["status"], deployment.speculator) == ("promoting", new_speculator)

    deployment_stop(deployment=deployment)
    rollouts_reconcile()

    found = get_rollout(client, made)
    assert (found["status"], found["reason"]["code"]) == ("rolled_back", "deployment_stopped")
    canary.refresh_from_db()
    deployment.refresh_from_db()
    assert (canary.desired_state, deployment.desired_state) == ("stopped", "stopped")
    assert canary.deleted_at is not None
    assert deployment.speculator == old


def test_a_rollout_does_not_end_before_the_requests_that_its_promotion_needs(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, _ = start_canary(client, deployment, new_speculator, min_requests=800, max_requests=50)
    add_better_canary(Rollout.objects.get(), num_requests=400)
    rollouts_reconcile()
    assert get_rollout(client, made)["status"] == "canary"

    add_better_canary(Rollout.objects.get(), num_requests=400)
    rollouts_reconcile()
    assert get_rollout(client, made)["status"] == "promoting"


def test_a_lost_connection_to_the_database_costs_only_the_evidence_that_it_interrupts(
    client: Client, deployment: Deployment, new_speculator: Speculator, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_canary(client, deployment, new_speculator)
    rollout, add = Rollout.objects.get(), evidence._add

    def lose_once(*args: Any) -> None:
        monkeypatch.setattr(evidence, "_add", add)
        raise InterfaceError("the connection is closed")

    monkeypatch.setattr(evidence, "_add", lose_once)
    request = evidence.Observation(
        organization_id=rollout.organization_id, rollout_id=rollout.pk, side=Side.CANDIDATE, ended="complete"
    )
    evidence.evidence_add([request, replace(request, side=Side.STABLE)])

    assert [evidence_of(rollout)[side].num_requests for side in (Side.CANDIDATE, Side.STABLE)] == [0, 1]


def test_one_different_answer_fails_a_shadow_rollout(
    client: Client, deployment: Deployment, new_speculator: Speculator
) -> None:
    made, canary = start_canary(client, deployment, new_speculator, mode="shadow")
    assert {chosen_id(route_of(deployment)) for _ in range(100)} == {deployment.pk}, "the canary must answer no caller"
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
