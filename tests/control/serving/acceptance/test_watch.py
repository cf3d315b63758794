"""Samples of running deployments lead to one event for each drop of the acceptance length."""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.serving.acceptance import services
from control.serving.acceptance.detector import NUM_LEARNED, Change
from control.serving.acceptance.models import AcceptanceWatch
from control.serving.acceptance.services import MIN_DRAFTS, acceptance_watch_all
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_update
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from tests.control.factories import client_of, make_organization
from tests.control.serving.acceptance.support import Traffic, make_watched

pytestmark = pytest.mark.django_db


@pytest.fixture
def traffic(organization: Organization, monkeypatch: pytest.MonkeyPatch) -> Traffic:
    return Traffic(make_watched(organization), monkeypatch)


def shown(client: Client, deployment: Deployment) -> Any:
    return client.get(f"/v1/deployments/{deployment.pk}").json()["acceptance"]


def event_types(deployment: Deployment) -> list[str]:
    events = Event.objects.filter(object_id=deployment.pk, type__startswith="acceptance.").order_by("number")
    return list(events.values_list("type", flat=True))


def test_a_drop_is_reported_once_and_shown_on_the_deployment(client: Client, traffic: Traffic) -> None:
    traffic.serve(minutes=NUM_LEARNED - 1, length=2.5)
    learning = shown(client, traffic.deployment)
    assert (learning["state"], learning["reference"], learning["dropped_at"]) == ("learning", None, None)
    traffic.serve(minutes=11, length=2.5)
    watching = shown(client, traffic.deployment)
    assert (watching["state"], watching["reference"], watching["current"]) == ("watching", 2.5, 2.5)
    began = timezone.now()
    traffic.serve(minutes=30, length=1.8)
    dropped = shown(client, traffic.deployment)
    assert (dropped["state"], dropped["reference"]) == ("dropped", 2.5)
    assert dropped["current"] == pytest.approx(1.8, abs=0.01)
    assert abs(dropped["drop_began_at"] - began.timestamp()) <= 120
    assert 0 < dropped["dropped_at"] - dropped["drop_began_at"] <= 240
    assert event_types(traffic.deployment) == ["acceptance.dropped"]
    traffic.serve(minutes=20, length=2.5)
    assert shown(client, traffic.deployment)["state"] == "watching"
    assert event_types(traffic.deployment) == ["acceptance.dropped", "acceptance.recovered"]


def test_minutes_are_counted_once_when_two_workers_read_them(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    traffic.serve(minutes=NUM_LEARNED, length=2.5)
    traffic.add(minutes=6, length=1.5)
    stale = Deployment.objects.select_related("acceptance_watch").get(pk=traffic.deployment.pk)
    assert services.acceptance_watch(deployment=stale) == [Change.DROPPED]
    stale = Deployment.objects.select_related("acceptance_watch").get(pk=traffic.deployment.pk)
    stale.acceptance_watch.until -= dt.timedelta(minutes=6)  # as read before the first worker wrote it
    stale.acceptance_watch.state, stale.acceptance_watch.statistic = "watching", 0.0
    assert services.acceptance_watch(deployment=stale) == []
    assert event_types(traffic.deployment) == ["acceptance.dropped"]


def test_a_crash_before_the_event_is_written_loses_neither_the_minutes_nor_the_alarm(
    traffic: Traffic, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic.serve(minutes=NUM_LEARNED, length=2.5)
    traffic.add(minutes=6, length=1.5)
    with monkeypatch.context() as patch:
        patch.setattr(services, "event_record", lambda **_: (_ for _ in ()).throw(RuntimeError("killed")))
        acceptance_watch_all()
    assert AcceptanceWatch.objects.get().state == "watching"
    acceptance_watch_all()
    assert event_types(traffic.deployment) == ["acceptance.dropped"]


def test_minutes_with_little_traffic_are_joined_to_one_bin(traffic: Traffic) -> None:
    traffic.serve(minutes=5, length=2.5, drafts=MIN_DRAFTS / 5)
    assert AcceptanceWatch.objects.get().num_bins == 1
    traffic.serve(minutes=4, length=2.5, drafts=MIN_DRAFTS / 5)
    assert AcceptanceWatch.objects.get().num_bins == 1
    traffic.serve(minutes=1, length=2.5, drafts=MIN_DRAFTS / 5)
    assert AcceptanceWatch.objects.get().num_bins == 2


def test_another_speculator_gets_a_reference_of_its_own_once_all_processes_serve_it(
    client: Client, traffic: Traffic
) -> None:
    traffic.serve(minutes=NUM_LEARNED, length=2.5)
    deployment_update(deployment=traffic.deployment, speculator=traffic.other_speculator())
    assert shown(client, traffic.deployment) is None
    traffic.deployment.replicas.update(state="ready")
    traffic.serve(minutes=3, length=1.5)  # the processes are still being replaced
    assert AcceptanceWatch.objects.get().num_bins == NUM_LEARNED
    Deployment.objects.update(observed_generation=traffic.deployment.generation)
    acceptance_watch_all()
    traffic.skip_minute()
    traffic.serve(minutes=2, length=1.5)
    learning = shown(client, traffic.deployment)
    assert (learning["state"], learning["current"]) == ("learning", 1.5)
    assert event_types(traffic.deployment) == []


def patch_alarm(client: Client, deployment: Deployment, minutes: object) -> Any:
    body = {"acceptance_alarm": {"reference_minutes": minutes}}
    return client.patch(f"/v1/deployments/{deployment.pk}", body, content_type="application/json")


def test_the_reference_is_learned_for_as_long_as_the_customer_says(client: Client, traffic: Traffic) -> None:
    changed = patch_alarm(client, traffic.deployment, 3)
    assert (changed.status_code, changed.json()["acceptance_alarm"]) == (200, {"reference_minutes": 3})
    acceptance_watch_all()
    traffic.skip_minute()
    traffic.serve(minutes=2, length=2.5)
    assert shown(client, traffic.deployment)["state"] == "learning"
    traffic.serve(minutes=1, length=2.5)
    assert (shown(client, traffic.deployment)["state"], shown(client, traffic.deployment)["reference"]) == (
        "watching",
        2.5,
    )
    traffic.serve(minutes=3, length=1.5)
    assert event_types(traffic.deployment) == ["acceptance.dropped"]


def test_another_length_starts_another_reference_and_the_same_one_does_not(client: Client, traffic: Traffic) -> None:
    traffic.serve(minutes=NUM_LEARNED, length=2.5)
    generation = Deployment.objects.get().generation
    assert patch_alarm(client, traffic.deployment, NUM_LEARNED).status_code == 200
    assert shown(client, traffic.deployment)["state"] == "watching"
    assert patch_alarm(client, traffic.deployment, 5).status_code == 200
    assert shown(client, traffic.deployment) is None
    acceptance_watch_all()
    traffic.skip_minute()
    traffic.serve(minutes=1, length=1.5)
    assert shown(client, traffic.deployment)["state"] == "learning"
    assert event_types(traffic.deployment) == []
    assert Deployment.objects.get().generation == generation  # no process restarts


@pytest.mark.parametrize("minutes", [2, 24 * 60 + 1, 3.5, "many", None])
def test_an_impossible_length_of_the_reference_is_refused(client: Client, traffic: Traffic, minutes: object) -> None:
    refused = patch_alarm(client, traffic.deployment, minutes)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "acceptance_alarm.reference_minutes")


def test_deployments_without_a_process_or_a_speculator_are_not_watched(
    client: Client, organization: Organization
) -> None:
    stopped = make_watched(organization, name="stopped")
    stopped.replicas.update(state="stopped")
    plain = make_watched(organization, name="plain")
    Deployment.objects.filter(pk=plain.pk).update(speculator=None)
    acceptance_watch_all()
    assert not AcceptanceWatch.objects.exists()
    assert shown(client, stopped) is None


def test_the_number_of_queries_does_not_grow_with_the_samples(
    traffic: Traffic, django_assert_max_num_queries: Any
) -> None:
    traffic.serve(minutes=2, length=2.5)
    traffic.add(minutes=50, length=2.5)
    with django_assert_max_num_queries(6):
        acceptance_watch_all()
    assert AcceptanceWatch.objects.get().num_bins == 52


def test_another_organization_sees_neither_the_figures_nor_the_event(traffic: Traffic) -> None:
    traffic.serve(minutes=NUM_LEARNED, length=2.5)
    traffic.serve(minutes=6, length=1.5)
    other = client_of(make_organization())
    assert other.get(f"/v1/deployments/{traffic.deployment.pk}").status_code == 404
    assert other.get("/v1/events").json()["data"] == []
