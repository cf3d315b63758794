"""Each engine sees one CUDA device, which no other engine sees. The fake engines print what they see."""

import dataclasses

import pytest

from control.core.settings.config import get_config
from control.serving.deployments.launchers.devices import NoFreeDevice, device_for_engine
from control.serving.deployments.launchers.engine_process import log_path
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_delete
from control.serving.deployments.supervisor import Supervisor
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    State,
    identity_of,
    make_deployment,
    make_served_model,
    processes_of,
    replica_of,
    tick_until,
    tick_until_state,
)


def use_devices(supervisor: Supervisor, **values: str) -> None:
    processes_of(supervisor).config = supervisor.config.model_copy(update=values)


def seen_by(supervisor: Supervisor, deployment: Deployment) -> str:
    """Returns the last line that the deployment's engine has printed."""
    return log_path(supervisor.config, deployment.pk).read_text().splitlines()[-1]


def test_with_two_devices_two_engines_see_one_device_each_and_a_third_engine_is_not_started(
    supervisor: Supervisor,
) -> None:
    use_devices(supervisor, device="cuda", endpoint_devices="3, GPU-a")
    folder = supervisor.config.data_dir / "model"
    deployments = [make_deployment(make_served_model(folder), name=f"endpoint-{number}") for number in range(2)]
    for deployment in deployments:
        tick_until_state(supervisor, deployment, State.READY)

    assert sorted(seen_by(supervisor, deployment) for deployment in deployments) == [
        "CUDA_VISIBLE_DEVICES=3 device=cuda",
        "CUDA_VISIBLE_DEVICES=GPU-a device=cuda",
    ]

    third = make_deployment(make_served_model(folder), name="third")
    waiting = Replica.objects.filter(deployment=third, blocked__code="no_free_device")
    tick_until(supervisor, waiting.exists)
    blocked = replica_of(third).blocked
    assert blocked is not None
    assert "other endpoints or jobs use all 2 CUDA devices" in blocked["message"]
    assert not log_path(supervisor.config, third.pk).exists()


def test_a_device_stays_assigned_under_the_next_supervisor_and_is_free_once_the_engine_has_ended(
    supervisor: Supervisor,
) -> None:
    use_devices(supervisor, device="cuda", endpoint_devices="5")
    deployment = make_deployment(make_served_model(supervisor.config.data_dir / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    engine = identity_of(deployment)

    following = Supervisor(supervisor.config, timings=TIMINGS)
    following.tick()
    with pytest.raises(NoFreeDevice):
        device_for_engine(processes_of(supervisor).config, ending=[])
    following.stop()
    deployment_delete(deployment=deployment)
    tick_until(supervisor, lambda: Deployment.objects.filter(pk=deployment.pk, state=State.STOPPED).exists())

    assert not engine.is_alive()
    assert device_for_engine(processes_of(supervisor).config, ending=[]) == "5"


def test_the_device_of_a_killed_process_is_not_free_before_the_process_has_ended(supervisor: Supervisor) -> None:
    use_devices(supervisor, device="cuda", endpoint_devices="0,1")
    supervisor.timings = dataclasses.replace(TIMINGS, startup_seconds=0.0)
    deployment = make_deployment(make_served_model(supervisor.config.data_dir / "model", "mute"))

    tick_until(supervisor, lambda: Deployment.objects.get(pk=deployment.pk).error is not None)

    assert list(processes_of(supervisor)._killed.values()) == ["0"]
    assert device_for_engine(processes_of(supervisor).config, ending=["0"]) == "1"
    with pytest.raises(NoFreeDevice):
        device_for_engine(processes_of(supervisor).config, ending=["0", "1"])


@pytest.mark.parametrize("values", [{"device": "cpu", "endpoint_devices": "0"}, {"device": "auto"}])
def test_an_engine_on_the_cpu_sees_no_device(
    supervisor: Supervisor, values: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    use_devices(supervisor, **values)
    deployment = make_deployment(make_served_model(supervisor.config.data_dir / "model"))
    tick_until_state(supervisor, deployment, State.READY)

    assert seen_by(supervisor, deployment) == f"CUDA_VISIBLE_DEVICES= device={values['device']}"


@pytest.mark.django_db
def test_without_endpoint_devices_engines_get_the_devices_that_the_supervisor_sees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    config = get_config().model_copy(update={"device": "auto"})

    assert device_for_engine(config, ending=["6"]) == "7"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(NoFreeDevice):
        device_for_engine(config.model_copy(update={"device": "cuda"}), ending=[])
