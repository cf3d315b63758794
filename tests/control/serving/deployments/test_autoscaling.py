"""The autoscaler sets the number of a deployment's replicas from the number of open requests of their engines."""

from pathlib import Path
from typing import Any

import httpx2
import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from control.core.api.errors import ApiError
from control.serving.deployments.autoscaling import Autoscaler
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.scaling import ScalingOptions
from control.serving.deployments.services import deployment_scaling_set
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import (
    State,
    make_deployment,
    make_replica,
    make_served_model,
    tick_until,
    tick_until_state,
)

UP_SECONDS, DOWN_SECONDS = 10, 300
OPTIONS = ScalingOptions(
    max_replicas=5, target_concurrency=4, scale_up_seconds=UP_SECONDS, scale_down_seconds=DOWN_SECONDS
)


class Scaled:
    """A deployment with one replica, an autoscaler and a fake clock. Tests set the replica's number of requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: ScalingOptions) -> None:
        self.deployment = make_deployment(make_base_model())
        deployment_scaling_set(deployment=self.deployment, scaling=options)
        make_replica(self.deployment)
        self.now = 1000.0
        self._autoscaler = Autoscaler()
        monkeypatch.setattr("control.serving.deployments.autoscaling.time.monotonic", lambda: self.now)

    def after(self, seconds: float, *, num_open: int) -> int:
        """Lets `seconds` pass with `num_open` open requests. Returns: the number of replicas that is then desired."""
        Replica.objects.filter(deployment=self.deployment, number=0).update(num_open=num_open)
        for elapsed in (0.0, seconds):
            self.now += elapsed
            self._autoscaler.follow(Deployment.objects.prefetch_related("replicas").get(pk=self.deployment.pk))
        return Deployment.objects.get(pk=self.deployment.pk).num_replicas


@pytest.fixture
def scaled(db: None, monkeypatch: pytest.MonkeyPatch) -> Scaled:
    return Scaled(monkeypatch, OPTIONS)


def test_replicas_are_added_when_they_have_been_needed_for_some_time(scaled: Scaled) -> None:
    numbers = [scaled.after(UP_SECONDS - 1, num_open=9), scaled.after(1, num_open=12), scaled.after(20, num_open=999)]

    assert numbers == [1, 3, 5]


def test_a_burst_shorter_than_the_scale_up_time_starts_no_replica(scaled: Scaled) -> None:
    assert [scaled.after(UP_SECONDS - 1, num_open=num_open) for num_open in (20, 1, 20, 1)] == [1] * 4


def test_after_the_cool_down_as_many_replicas_remain_as_were_needed_during_the_cool_down(scaled: Scaled) -> None:
    scaled.after(UP_SECONDS, num_open=20)
    numbers = [
        scaled.after(DOWN_SECONDS - 50, num_open=1),
        scaled.after(10, num_open=7),
        scaled.after(40, num_open=0),
        scaled.after(DOWN_SECONDS, num_open=0),
    ]

    assert numbers == [5, 5, 2, 1]


def test_more_traffic_restarts_the_cool_down(scaled: Scaled) -> None:
    scaled.after(UP_SECONDS, num_open=20)
    numbers = [scaled.after(DOWN_SECONDS - 1, num_open=1), scaled.after(1, num_open=20), scaled.after(9, num_open=1)]

    assert numbers == [5, 5, 5]


def test_as_many_replicas_are_added_as_the_quota_of_devices_allows(
    scaled: Scaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(organization_id: str, *, num_more: int = 1, **_: Any) -> None:
        if num_more > 1:
            raise ApiError(429, "no more devices", "devices_quota_exceeded")

    monkeypatch.setattr("control.serving.deployments.services.device_quota_check", refuse)

    assert scaled.after(UP_SECONDS, num_open=20) == 2


@pytest.mark.django_db
@pytest.mark.parametrize("state", [State.STOPPED, State.STOPPING, State.FAILED])
def test_a_deployment_that_does_not_run_is_not_scaled(scaled: Scaled, state: State) -> None:
    Deployment.objects.update(state=state)

    assert scaled.after(UP_SECONDS, num_open=20) == 1


@given(
    num_open=st.integers(0, 5000),
    limits=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    target=st.none() | st.integers(1, 100),
    at_once=st.integers(1, 100),
)
def test_the_number_of_replicas_suffices_for_the_requests_or_is_the_maximum(
    num_open: int, limits: tuple[int, int], target: int | None, at_once: int
) -> None:
    minimum, maximum = sorted(limits)
    options = ScalingOptions(max_replicas=maximum, min_replicas=minimum, target_concurrency=target)
    needed = options.needed(num_open, at_once=at_once)

    assert minimum <= needed <= maximum
    assert needed * (target or at_once) >= num_open or needed == maximum
    assert needed == minimum or (needed - 1) * (target or at_once) < num_open, "one replica less would not suffice"


def test_a_deployment_grows_while_its_engines_are_busy_and_shrinks_when_they_are_idle(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    options = ScalingOptions(max_replicas=2, target_concurrency=1, scale_up_seconds=0, scale_down_seconds=0)
    deployment_scaling_set(deployment=deployment, scaling=options)
    tick_until_state(supervisor, deployment, State.READY)
    replica = deployment.replicas.get()
    body = {"messages": [{"role": "user", "content": "pause"}], "stream": True}
    headers = {"Authorization": f"Bearer {replica.token}"}
    url = f"http://{replica.host}:{replica.port}/v1/chat/completions"
    with (
        httpx2.Client(headers=headers, trust_env=False) as client,
        client.stream("POST", url, json=body),
        client.stream("POST", url, json=body),
    ):
        tick_until(supervisor, lambda: Replica.objects.filter(state=Replica.State.READY).count() == 2)
        (tmp_path / "model" / "go_on").touch()
    tick_until(supervisor, lambda: Replica.objects.count() == 1)

    assert deployment.replicas.get().pid == replica.pid


@pytest.mark.django_db
def test_the_number_of_replicas_stays_within_limits_that_the_api_validates(
    client: Client, organization: Organization
) -> None:
    body = {"name": "fast", "model": make_base_model().name, "scaling": {"max_replicas": 4, "min_replicas": 2}}
    created = client.post("/v1/deployments", body, content_type="application/json").json()
    path = f"/v1/deployments/{created['id']}"
    scaling = {"max_replicas": 4, "min_replicas": 5}
    refused = client.patch(path, {"scaling": scaling}, content_type="application/json")
    raised = client.patch(path, {"scaling": {**scaling, "max_replicas": 5}}, content_type="application/json").json()

    assert (created["replicas"], raised["replicas"]) == (2, 5)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "scaling.min_replicas")
