"""Supervisors put idle endpoints to sleep, wake them, and do not charge for the time in which they sleep."""

import datetime as dt
from pathlib import Path

import pytest
from django.db.models import Sum
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from control.billing.ledger.models import LedgerLine, Subject
from control.core.settings.config import get_config
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.scaling import ScalingOptions
from control.serving.deployments.services import deployment_scaling_set, deployment_stop, deployment_update
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from tests.control.factories import make_base_model
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    State,
    age_engines,
    identity_of,
    make_deployment,
    make_served_model,
    num_wakes,
    replica_of,
    tick_until,
    tick_until_asleep,
    tick_until_state,
)

TO_ZERO = ScalingOptions(scale_to_zero_seconds=600)


def sleeping_deployment(supervisor: Supervisor, folder: Path, behaviour: str = "serve") -> Deployment:
    deployment = make_deployment(make_served_model(folder / "model", behaviour))
    deployment_scaling_set(deployment=deployment, scaling=TO_ZERO)
    tick_until_state(supervisor, deployment, State.READY)
    tick_until_asleep(supervisor, deployment)
    return deployment


def test_an_idle_deployment_is_put_to_sleep_and_an_event_reports_it(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = sleeping_deployment(supervisor, tmp_path)

    assert identity_of(deployment).is_alive()
    types = list(Event.objects.filter(object_id=deployment.pk).order_by("number").values_list("type", flat=True))
    assert types == ["deployment.provisioning", "deployment.ready", "deployment.sleeping"]


def test_a_deployment_stays_awake_if_it_was_idle_for_less_than_its_limit_or_has_no_limit(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    age_engines(deployment)
    for _ in range(20):
        supervisor.tick()
    without_limit = replica_of(deployment).state
    deployment_scaling_set(deployment=deployment, scaling=ScalingOptions(scale_to_zero_seconds=36_000))
    for _ in range(20):
        supervisor.tick()

    assert (without_limit, replica_of(deployment).state) == (Replica.State.READY, Replica.State.READY)


def test_a_sleeping_deployment_wakes_when_its_idle_limit_is_removed(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = sleeping_deployment(supervisor, tmp_path)

    deployment_scaling_set(deployment=deployment, scaling=ScalingOptions())
    tick_until_state(supervisor, deployment, State.READY)

    assert num_wakes(tmp_path / "model") == 1


def test_an_engine_that_cannot_sleep_is_asked_to_sleep_only_once(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.serving.deployments.sleeping.RETRY_SECONDS", 0.0)
    deployment = make_deployment(make_served_model(tmp_path / "model", "sleepless"))
    deployment_scaling_set(deployment=deployment, scaling=TO_ZERO)
    tick_until_state(supervisor, deployment, State.READY)
    age_engines(deployment)

    (watched,) = supervisor._watched.values()
    tick_until(supervisor, lambda: not watched.sleep._is_supported)
    for _ in range(20):
        supervisor.tick()

    assert watched.sleep._pending is None
    assert replica_of(deployment).state == Replica.State.READY


def test_the_next_supervisor_adopts_a_sleeping_engine_and_stops_it(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = sleeping_deployment(supervisor, tmp_path)
    process = identity_of(deployment)
    supervisor.stop()
    adopter = Supervisor(supervisor.config, timings=TIMINGS)
    for _ in range(20):
        adopter.tick()
    state = replica_of(deployment).state
    deployment_stop(deployment=deployment)
    tick_until_state(adopter, deployment, State.STOPPED)
    adopter.stop()

    assert state == Replica.State.SLEEPING
    assert num_wakes(tmp_path / "model") == 0
    assert not process.is_alive()


def test_a_sleeping_endpoint_is_replaced_like_a_ready_one(supervisor: Supervisor, tmp_path: Path) -> None:
    deployment = sleeping_deployment(supervisor, tmp_path)

    deployment_update(deployment=deployment, speculator=None)
    tick_until(supervisor, lambda: Replica.objects.filter(generation=2, state=Replica.State.READY).exists())


def test_the_time_asleep_is_not_charged(supervisor: Supervisor, tmp_path: Path) -> None:
    def charged() -> float:
        lines = LedgerLine.objects.filter(subject=Subject.ENDPOINT_TIME, object_id=deployment.pk)
        return float(lines.aggregate(sum=Sum("count"))["sum"] or 0)

    deployment = make_deployment(make_served_model(tmp_path / "model"))
    deployment_scaling_set(deployment=deployment, scaling=TO_ZERO)
    tick_until_state(supervisor, deployment, State.READY)
    Replica.objects.update(metered_until=timezone.now() - dt.timedelta(seconds=40))
    tick_until_asleep(supervisor, deployment)
    until_asleep = charged()
    for _ in range(20):
        supervisor.tick()
    while_asleep, metered_until = charged(), replica_of(deployment).metered_until

    deployment_scaling_set(deployment=deployment, scaling=ScalingOptions())
    woken_after = timezone.now()
    tick_until_state(supervisor, deployment, State.READY)

    assert until_asleep >= 40
    assert (while_asleep, metered_until) == (until_asleep, None)
    again = replica_of(deployment).metered_until
    assert again is not None
    assert again >= woken_after


@pytest.mark.django_db
def test_scaling_is_set_and_shown_through_the_api(client: Client, organization: Organization) -> None:
    model = make_base_model()
    body = {"name": "fast", "model": model.name, "scaling": {"scale_to_zero_seconds": 300}}
    created = client.post("/v1/deployments", body, content_type="application/json").json()
    path = f"/v1/deployments/{created['id']}"
    too_soon = client.patch(path, {"scaling": {"scale_to_zero_seconds": 1}}, content_type="application/json")
    changed = client.patch(path, {"scaling": {}}, content_type="application/json").json()

    assert created["scaling"]["scale_to_zero_seconds"] == 300
    assert too_soon.status_code == 400
    assert changed["scaling"]["scale_to_zero_seconds"] is None
    assert Deployment.objects.get().generation == 1


@pytest.mark.django_db
def test_on_cuda_a_deployment_cannot_scale_to_zero(
    client: Client, organization: Organization, settings: Settings
) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"device": "cuda"})
    body = {"name": "fast", "model": make_base_model().name, "scaling": {"scale_to_zero_seconds": 300}}
    response = client.post("/v1/deployments", body, content_type="application/json")

    assert (response.status_code, response.json()["error"]["code"]) == (409, "sleep_not_supported")
