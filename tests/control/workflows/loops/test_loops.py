"""The settings of a loop are checked. Triggers begin rounds, which the switch or a spent budget prevents or stops."""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.billing.ledger.models import Subject
from control.serving.captures.models import Capture
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.workflows.loops.models import Loop, LoopRound
from control.workflows.loops.rounds import rounds_reconcile
from control.workflows.loops.triggers import rounds_begin
from tests.control.factories import client_of
from tests.control.serving.deployments.support import make_speculator
from tests.control.workflows.loops.helpers import (
    SETTINGS,
    advance,
    advance_to,
    begin,
    capture_requests,
    decide_rollout,
    drop_acceptance,
    make_deployment,
    make_loop,
    pipeline_of,
    set_ready,
    spend,
    spend_on,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return make_deployment(organization)


def path_of(deployment: Deployment, rest: str = "") -> str:
    return f"/v1/deployments/{deployment.pk}/loop{rest}"


def put(client: Client, deployment: Deployment, **body: Any) -> Any:
    return client.put(path_of(deployment), {**SETTINGS, **body}, content_type="application/json")


def patch(client: Client, deployment: Deployment, headers: dict[str, str] | None = None, **body: Any) -> Any:
    return client.patch(path_of(deployment), body, content_type="application/json", headers=headers or {})


def test_a_loop_is_set_changed_shown_and_deleted(client: Client, deployment: Deployment) -> None:
    assert client.get(path_of(deployment)).json()["error"]["code"] == "loop_not_found"
    made = put(client, deployment, limits={"monthly_budget": 12.5}).json()
    assert made["limits"]["monthly_budget"] == {"value": 12.5, "currency": "usd"}
    assert (made["enabled"], made["running_round_id"], made["blocked"]) == (True, None, None)
    assert made["triggers"] == {"acceptance_drop": True, "every_hours": None, "new_requests": None}
    changed = patch(client, deployment, triggers={"every_hours": 24}).json()
    assert (changed["triggers"]["every_hours"], changed["recipe"]) == (24, made["recipe"])
    again = put(client, deployment).json()
    assert (again["id"], again["limits"]["monthly_budget"]) == (made["id"], None)
    assert client.delete(path_of(deployment)).json() == {
        "id": made["id"], "object": "deployment.loop", "deleted": True,
    }  # fmt: skip
    assert client.get(path_of(deployment)).status_code == 404


def test_the_terms_of_the_rollout_include_its_mode_and_alpha(client: Client, deployment: Deployment) -> None:
    body = {"mode": "shadow", "alpha": 0.2, "min_requests": 10}
    shown = put(client, deployment, rollout=body).json()["rollout"]
    assert (shown["mode"], shown["alpha"]) == ("shadow", 0.2)
    advance_to("rolling_out", begin(deployment, rollout=body))
    rollout = Rollout.objects.get()
    assert (rollout.mode, rollout.alpha, rollout.min_requests) == ("shadow", 0.2, 10)


def test_the_row_of_a_loop_with_default_terms_has_only_members_that_the_previous_release_knows(
    client: Client, deployment: Deployment
) -> None:
    assert put(client, deployment, rollout={"mode": "canary", "alpha": 0.05}).json()["rollout"]["alpha"] == 0.05
    known = {"share_percent", "min_requests", "max_acceptance_drop", "max_error_rate", "max_seconds"}
    assert set(Loop.objects.get().rollout) == known


def test_a_change_is_refused_if_the_loop_is_no_longer_the_one_that_was_read(
    client: Client, deployment: Deployment
) -> None:
    put(client, deployment)
    tag = client.get(path_of(deployment))["ETag"]
    assert patch(client, deployment, {"If-Match": tag}, enabled=False).status_code == 200
    assert patch(client, deployment, {"If-Match": tag}, enabled=True).json()["error"]["code"] == "object_changed"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"rollout": {"mode": "blind"}}, "invalid_value", "rollout.mode"),
        ({"rollout": {"alpha": 0.6}}, "invalid_value", "rollout.alpha"),
        ({"recipe": {"kind": "nonsense"}}, "invalid_value", "recipe.kind"),
        ({"recipe": {"kind": "turbo_lora"}}, "output_change", "recipe.kind"),
        ({"recipe": {"hyperparameters": {"epochs": "x"}}}, "invalid_value", "recipe.hyperparameters.epochs"),
        ({"recipe": {"hyperparameters": {"nope": 1}}}, "unknown_parameter", "recipe.hyperparameters.nope"),
        ({"recipe": {"min_rows": 6_000}}, "invalid_value", "recipe.min_rows"),
        ({"recipe": {"held_out": 200}}, "invalid_value", "recipe.held_out"),
        ({"gate": {"concurrency": 4}}, "invalid_value", "gate.concurrency"),
        ({"gate": {"min_acceptance_gain": -1}}, "invalid_value", "gate.min_acceptance_gain"),
        ({"recipe": {"evaluation": {"compare_with": ["ngram"] * 4}}}, "invalid_value", None),
        ({"limits": {"monthly_budget": -1}}, "invalid_value", "limits.monthly_budget"),
        ({"triggers": {"every_days": 1}}, "unknown_parameter", "triggers.every_days"),
    ],
)
def test_a_loop_that_cannot_work_is_refused(
    body: dict[str, Any], code: str, param: str | None, client: Client, deployment: Deployment
) -> None:
    response = put(client, deployment, **body)
    assert response.status_code == 400, response.content
    error = response.json()["error"]
    assert error["code"] == code
    assert param in (None, error["param"])
    assert not Loop.objects.exists()


def test_a_loop_needs_a_capture_and_a_kind(client: Client, deployment: Deployment) -> None:
    Deployment.objects.update(speculator=None)
    assert put(client, deployment).json()["error"]["param"] == "recipe.kind"
    Capture.objects.all().delete()
    refused = put(client, deployment, recipe={"kind": "medusa"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "capture_not_found")


def test_another_organization_sees_neither_loop_nor_rounds(
    deployment: Deployment, other_organization: Organization, client: Client
) -> None:
    made = advance(begin(deployment))
    other = client_of(other_organization)
    for rest in ("", "/rounds", f"/rounds/{made.pk}"):
        assert client.get(path_of(deployment, rest)).status_code == 200
        assert other.get(path_of(deployment, rest)).status_code == 404
    assert put(other, deployment).status_code == 404
    assert patch(other, deployment, enabled=False).status_code == 404
    assert other.delete(path_of(deployment)).status_code == 404
    own = make_deployment(other_organization)
    assert other.get(path_of(own, f"/rounds/{made.pk}")).status_code == 404
    assert Loop.objects.get().enabled


def test_a_round_shows_all_objects_that_it_made_and_the_list_has_pages(
    client: Client, deployment: Deployment, django_assert_max_num_queries: Any
) -> None:
    made = advance_to("rolling_out", begin(deployment))
    spend(made, 0.25)
    shown = client.get(path_of(deployment, f"/rounds/{made.pk}")).json()
    pipeline = pipeline_of(made)
    assert pipeline.evaluation_job is not None
    assert shown["pipeline_id"] == pipeline.pk
    assert (shown["batch_id"], shown["speculator_id"]) == (pipeline.batch_id, pipeline.speculator_id)
    assert shown["evaluation_id"] == pipeline.evaluation_job.evaluation.pk
    assert shown["rollout_id"] == Rollout.objects.get().pk
    assert (shown["prompts_file"], shown["held_out_file"]) == (pipeline.prompts_file_id, pipeline.held_out_file_id)
    assert shown["previous_speculator_id"] == deployment.speculator_id
    assert (shown["figures"]["old"]["acceptance_length"], shown["figures"]["new"]["acceptance_length"]) == (1.8, 2.4)
    assert shown["cost"] == {"value": 0.25, "currency": "usd"}
    assert client.get(path_of(deployment)).json()["running_round_id"] == made.pk
    own = {"organization": deployment.organization, "deployment": deployment, "trigger": "schedule"}
    LoopRound.objects.bulk_create([LoopRound(**own, status="failed") for _ in range(30)])
    with django_assert_max_num_queries(12):
        page = client.get(path_of(deployment, "/rounds?limit=20")).json()
    assert (len(page["data"]), page["has_more"]) == (20, True)
    rest = client.get(path_of(deployment, f"/rounds?after={page['last_id']}")).json()
    assert [each["id"] for each in rest["data"]][-1] == made.pk


def begun() -> list[str]:
    rounds_begin()
    return list(LoopRound.objects.order_by("pk").values_list("trigger", flat=True))


def end_rounds() -> None:
    """Ends all rounds and makes them two hours old."""
    LoopRound.objects.update(
        status="failed", finished_at=timezone.now(), created_at=timezone.now() - dt.timedelta(hours=2)
    )


def test_each_drop_begins_one_round(deployment: Deployment) -> None:
    make_loop(deployment)
    assert begun() == []
    watch = drop_acceptance(deployment)
    assert begun() == ["acceptance_drop"]
    assert begun() == ["acceptance_drop"]
    end_rounds()
    assert begun() == ["acceptance_drop"]
    watch.dropped_at = timezone.now() + dt.timedelta(minutes=1)
    watch.save()
    assert begun() == ["acceptance_drop"] * 2


def test_a_drop_that_has_recovered_or_belongs_to_another_speculator_begins_no_round(deployment: Deployment) -> None:
    make_loop(deployment)
    watch = drop_acceptance(deployment)
    watch.state = "watching"
    watch.save()
    assert begun() == []
    watch.state, watch.speculator_id = "dropped", make_speculator(deployment.base_model, deployment.organization).pk
    watch.save()
    assert begun() == []


def test_a_schedule_begins_a_round_a_number_of_hours_after_the_last_round(deployment: Deployment) -> None:
    loop = make_loop(deployment, triggers={"every_hours": 3})
    assert begun() == []
    Loop.objects.filter(pk=loop.pk).update(created_at=timezone.now() - dt.timedelta(hours=3))
    assert begun() == ["schedule"]
    end_rounds()
    assert begun() == ["schedule"]
    LoopRound.objects.update(created_at=timezone.now() - dt.timedelta(hours=3))
    assert begun() == ["schedule"] * 2


def test_newly_captured_requests_begin_a_round(deployment: Deployment) -> None:
    make_loop(deployment, triggers={"new_requests": 5})
    assert begun() == []
    capture_requests(deployment, 4)
    assert begun() == []
    capture_requests(deployment, 1)
    assert begun() == ["new_requests"]


def test_rounds_begin_at_least_the_minimum_time_apart(deployment: Deployment) -> None:
    make_loop(deployment, triggers={"new_requests": 1}, limits={"min_seconds_between_rounds": 3 * 3600})
    capture_requests(deployment, 1)
    assert begun() == ["new_requests"]
    end_rounds()
    assert begun() == ["new_requests"]
    LoopRound.objects.update(created_at=timezone.now() - dt.timedelta(hours=3))
    assert begun() == ["new_requests"] * 2


@pytest.mark.parametrize("values", [{"state": "failed"}, {"state": "stopped", "desired_state": "stopped"}])
def test_a_deployment_that_does_not_serve_begins_no_round(values: dict[str, str], deployment: Deployment) -> None:
    make_loop(deployment)
    drop_acceptance(deployment)
    Deployment.objects.update(**values)
    assert begun() == []


def test_a_spent_budget_prevents_rounds_and_is_reported_once(client: Client, deployment: Deployment) -> None:
    made = advance(begin(deployment, limits={"monthly_budget": 1}))
    spend(made, 1.0)
    end_rounds()
    drop = drop_acceptance(deployment)
    for _ in range(3):
        assert len(begun()) == 1
    shown = client.get(path_of(deployment)).json()
    assert shown["blocked"]["code"] == "budget_reached"
    assert shown["spent_this_month"] == {"value": 1.0, "currency": "usd"}
    assert Event.objects.filter(type="loop.blocked").count() == 1
    patch(client, deployment, limits={"monthly_budget": 2, "min_seconds_between_rounds": 0})
    assert client.get(path_of(deployment)).json()["blocked"] is None
    assert len(begun()) == 2
    assert LoopRound.objects.filter(alarm_at=drop.dropped_at).count() == 1


def test_the_budget_counts_only_the_rounds_of_the_month(deployment: Deployment) -> None:
    made = advance(begin(deployment, limits={"monthly_budget": 1}))
    spend(made, 1.0)
    LoopRound.objects.update(status="failed", created_at=timezone.now() - dt.timedelta(days=32))
    drop_acceptance(deployment)
    assert len(begun()) == 2


def test_a_running_round_that_spends_the_budget_is_stopped(deployment: Deployment) -> None:
    made = advance_to("training", begin(deployment, limits={"monthly_budget": 1}))
    spend(made, 0.99)
    assert advance(made).status == "training"
    spend(made, 0.01)
    made = advance(made)
    assert (made.status, made.reason and made.reason["code"]) == ("stopped", "budget_reached")
    assert pipeline_of(made).status == "cancelled"


@pytest.mark.parametrize("status", ["capturing", "distilling", "training", "evaluating", "rolling_out"])
def test_disabling_a_loop_stops_the_running_round_and_prevents_further_rounds(
    status: str, client: Client, deployment: Deployment
) -> None:
    made = begin(deployment)
    made = made if status == "capturing" else advance_to(status, made)
    assert made.status == status
    patch(client, deployment, enabled=False)
    made.refresh_from_db()
    assert (made.status, made.reason and made.reason["code"]) == ("stopped", "loop_disabled")
    if made.pipeline is not None:
        assert made.pipeline.status == ("succeeded" if status == "rolling_out" else "cancelled")
    assert all(rollout.status == "rolled_back" for rollout in Rollout.objects.all())
    rounds_reconcile()
    drop_acceptance(deployment)
    assert len(begun()) == 1


def test_a_rollout_that_is_decided_is_not_stopped(client: Client, deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment))
    rollout = Rollout.objects.get()
    set_ready(rollout.canary, port=2)
    Rollout.objects.update(status="promoting")
    patch(client, deployment, enabled=False)
    assert advance(made).status == "rolling_out"
    Rollout.objects.update(status="promoted", reason={"code": "accepted", "message": ""})
    assert advance(made).status == "promoted"


def test_a_deleted_loop_stops_its_round_and_leaves_the_history(client: Client, deployment: Deployment) -> None:
    made = advance_to("training", begin(deployment))
    client.delete(path_of(deployment))
    made.refresh_from_db()
    assert (made.status, made.reason and made.reason["code"]) == ("stopped", "loop_deleted")
    (shown,) = client.get(path_of(deployment, "/rounds")).json()["data"]
    assert shown["id"] == made.pk


def test_a_loop_without_a_capture_is_blocked(client: Client, deployment: Deployment) -> None:
    make_loop(deployment)
    drop_acceptance(deployment)
    client.delete(f"/v1/deployments/{deployment.pk}/capture")
    assert begun() == []
    assert client.get(path_of(deployment)).json()["blocked"]["code"] == "capture_not_found"


def test_the_canary_of_a_round_counts_towards_its_cost(client: Client, deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment))
    decide_rollout(made, is_better=True)
    spend_on(Subject.ENDPOINT_TIME, Rollout.objects.get().canary_id, made, 0.5)
    assert client.get(path_of(deployment, f"/rounds/{made.pk}")).json()["cost"]["value"] == 0.5
