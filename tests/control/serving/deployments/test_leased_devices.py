"""Engines lease the devices that the operators state, as jobs do. The fake engines print what they see."""

# long: all cases in which engines and jobs meet on a device use the same fixtures of processes

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import pytest
from django.test import Client
from pydantic import ValidationError
from pytest_django import Settings

from control.billing.ledger.models import LedgerLine
from control.core.database_clock import from_now
from control.core.settings.config import Config, StatedDevice
from control.models.catalog.models import BaseModel
from control.queue.devices.models import Device, EndpointLease
from control.queue.devices.selectors import endpoint_devices_present, hardware
from control.queue.devices.services import devices_register, endpoint_devices_renew, endpoint_devices_withdraw
from control.queue.jobs.services import job_claim_next, job_succeed
from control.serving.deployments.launchers.devices import NoFreeDevice, device_for_engine
from control.serving.deployments.launchers.engine_process import _locked, log_path
from control.serving.deployments.launchers.leased_devices import leases_adopt, unused_leases_end
from control.serving.deployments.management.commands.supervise_deployments import _supervise
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_delete, deployment_scale, deployment_stop
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.factories import make_job
from tests.control.queue.devices.helpers import GB, cpu, gpu, state
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    FAKE_ENGINE,
    State,
    children_of,
    crashes_of,
    identity_of,
    make_deployment,
    make_replica,
    make_served_model,
    replica_of,
    tick_until,
    tick_until_state,
)
from tests.workers.test_planning import QWEN_32B
from workers.model_sizes import ModelSizes


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a waiting replica look for a device at every tick."""
    monkeypatch.setattr("control.serving.deployments.observations.DEVICE_WAIT_SECONDS", 0.0)


@pytest.fixture
def model(db: None, tmp_path: Path) -> BaseModel:
    return make_served_model(tmp_path / "model")


@pytest.fixture
def started(db: None, settings: Settings, tmp_path: Path) -> Iterator[list[Supervisor]]:
    """The supervisors that `start` has started; their engines are ended after the test."""
    settings.SLIPSTREAM_ENGINE_COMMAND = FAKE_ENGINE
    supervisors: list[Supervisor] = []
    yield supervisors
    for supervisor in supervisors:
        supervisor.drains = True
        supervisor.stop()
        for child in children_of(supervisor):
            child.kill()
            child.wait(timeout=10)


def start(
    started: list[Supervisor], settings: Settings, tmp_path: Path, *devices: StatedDevice, machine: str = "here"
) -> Supervisor:
    state(settings, *devices, machine=machine, data_dir=tmp_path / machine)
    endpoint_devices_renew()
    supervisor = Supervisor(settings.SLIPSTREAM, timings=TIMINGS)
    started.append(supervisor)
    return supervisor


def holders() -> list[tuple[str, int, str]]:
    """Returns kind and index of each device that an endpoint holds, with the id of the deployment."""
    leases = EndpointLease.objects.order_by("device__kind", "device__index")
    return list(leases.values_list("device__kind", "device__index", "deployment_id"))


def seen_by(supervisor: Supervisor, deployment: Deployment) -> str:
    return log_path(supervisor.config, deployment.pk).read_text().splitlines()[-1]


def blocked_code(deployment: Deployment) -> str | None:
    blocked: dict[str, str] | None = Replica.objects.get(deployment=deployment, number=0).blocked
    return None if blocked is None else blocked["code"]


def tick_until_blocked(supervisor: Supervisor, deployment: Deployment, code: str) -> None:
    tick_until(
        supervisor,
        lambda: Replica.objects.filter(deployment=deployment, number=0, blocked__code=code).exists(),
    )


def test_an_engine_sees_only_the_smallest_device_that_fits_and_gives_it_back(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    supervisor = start(started, settings, tmp_path, gpu(80), gpu(24, index=3), gpu(40, index=5))
    deployment = make_deployment(model)

    tick_until_state(supervisor, deployment, State.READY)

    assert seen_by(supervisor, deployment) == "CUDA_VISIBLE_DEVICES=3 device=auto"
    assert holders() == [("cuda", 3, deployment.pk)]
    assert [(group.memory_bytes, group.free) for group in hardware()] == [(24 * GB, 0), (40 * GB, 1), (80 * GB, 1)]
    deployment_stop(deployment=deployment)
    tick_until_state(supervisor, deployment, State.STOPPED)
    assert holders() == []


def test_an_engine_that_sees_one_device_gets_the_device_option_without_an_index(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    settings.SLIPSTREAM = settings.SLIPSTREAM.model_copy(update={"device": "cuda:1"})
    supervisor = start(started, settings, tmp_path, gpu(80, index=1))
    deployment = make_deployment(model)

    tick_until_state(supervisor, deployment, State.READY)

    assert seen_by(supervisor, deployment) == "CUDA_VISIBLE_DEVICES=1 device=cuda"


def test_an_engine_on_a_stated_cpu_sees_no_gpu_and_holds_the_cpu_alone(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    supervisor = start(started, settings, tmp_path, cpu(16))
    first = make_deployment(model)
    tick_until_state(supervisor, first, State.READY)

    second = make_deployment(model)

    tick_until_blocked(supervisor, second, "no_free_device")

    assert seen_by(supervisor, first) == "CUDA_VISIBLE_DEVICES= device=cpu"
    assert holders() == [("cpu", 0, first.pk)]


def test_without_stated_devices_engines_on_the_cpu_share_it(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    supervisor = start(started, settings, tmp_path)
    deployments = [make_deployment(model) for _ in range(2)]

    for deployment in deployments:
        tick_until_state(supervisor, deployment, State.READY)

    assert holders() == []


def test_a_replica_that_finds_no_free_device_waits_and_starts_when_a_job_ends(
    started: list[Supervisor],
    settings: Settings,
    tmp_path: Path,
    client: Client,
    organization: Organization,
) -> None:
    supervisor = start(started, settings, tmp_path, gpu(80))
    devices_register()
    job = make_job(organization, memory_needed={"cuda": GB})
    claim = job_claim_next(worker="worker")
    assert claim is not None
    deployment = make_deployment(make_served_model(tmp_path / "model", organization=organization), organization)

    tick_until_blocked(supervisor, deployment, "no_free_device")

    shown = client.get(f"/v1/deployments/{deployment.pk}").json()
    assert (shown["state"], shown["blocked"]["code"], shown["error"]) == ("provisioning", "no_free_device", None)
    assert "held by jobs or other endpoints" in shown["blocked"]["message"]
    assert not EndpointLease.objects.exists()
    assert crashes_of(deployment) == []
    job_succeed(claim=claim, result={})
    tick_until_state(supervisor, deployment, State.READY)
    assert client.get(f"/v1/deployments/{deployment.pk}").json()["blocked"] is None
    assert job.pk not in {lease.deployment_id for lease in EndpointLease.objects.all()}


def test_a_job_does_not_get_the_device_of_an_endpoint_before_the_engine_has_ended(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    supervisor = start(started, settings, tmp_path, gpu(80))
    devices_register()
    deployment = make_deployment(model)
    tick_until_state(supervisor, deployment, State.READY)
    job = make_job(memory_needed={"cuda": GB})
    assert job_claim_next(worker="worker") is None
    engine = identity_of(deployment)

    deployment_delete(deployment=deployment)
    while EndpointLease.objects.exists():
        assert job_claim_next(worker="worker") is None
        supervisor.tick()

    assert not engine.is_alive()
    claimed = job_claim_next(worker="worker")
    assert claimed is not None
    assert (claimed.job_id, claimed.visible_devices) == (job.pk, "0")


def test_a_device_that_only_a_supervisor_has_registered_is_offered_to_no_job(
    started: list[Supervisor], settings: Settings, tmp_path: Path, client: Client, organization: Organization
) -> None:
    start(started, settings, tmp_path, gpu(80))
    job = make_job(organization, memory_needed={"cuda": GB})

    assert client.get(f"/v1/jobs/{job.pk}").json()["blocked"]["code"] == "no_worker"
    assert [group.count for group in hardware()] == [1]
    endpoint_devices_withdraw()
    assert hardware() == []


def test_a_model_that_fits_no_device_waits_until_a_larger_one_is_stated(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    model.sizes = asdict(ModelSizes.of(QWEN_32B))
    model.save()
    supervisor = start(started, settings, tmp_path, gpu(24))
    deployment = make_deployment(model)
    tick_until_blocked(supervisor, deployment, "no_device_fits")
    message = replica_of(deployment).blocked["message"]  # type: ignore[index]
    assert "The endpoint needs a device with" in message
    assert "24.0 GB (cuda)" in message

    state(settings, gpu(24), gpu(160, index=1), machine="here", data_dir=tmp_path / "here")
    endpoint_devices_renew()

    tick_until_state(supervisor, deployment, State.READY)
    assert holders() == [("cuda", 1, deployment.pk)]


def test_the_next_supervisor_adopts_the_engine_with_its_device(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    devices = (gpu(80), gpu(80, index=1))
    killed = start(started, settings, tmp_path, *devices)
    deployment = make_deployment(model)
    tick_until_state(killed, deployment, State.READY)
    engine, lease = identity_of(deployment), EndpointLease.objects.get()
    Replica.objects.update(lease_until="2020-01-01T00:00:00Z")  # as some seconds after a kill

    unused_leases_end(settings.SLIPSTREAM)
    following = start(started, settings, tmp_path, *devices)
    for _ in range(5):
        following.tick()

    assert identity_of(deployment) == engine
    assert engine.is_alive()
    assert EndpointLease.objects.get() == lease
    other = make_deployment(model)
    tick_until_state(following, other, State.READY)
    assert seen_by(following, other) == f"CUDA_VISIBLE_DEVICES={1 - lease.device.index} device=auto"


def test_the_next_supervisor_gives_the_device_that_a_killed_supervisor_leased_to_the_same_replica(
    started: list[Supervisor],
    settings: Settings,
    tmp_path: Path,
    model: BaseModel,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    def tick_until_killed() -> None:
        while True:
            first.tick()

    first = start(started, settings, tmp_path, gpu(80), gpu(80, index=1))
    deployment = make_deployment(model)
    with monkeypatch.context() as patch:
        patch.setattr("control.serving.deployments.launchers.process.launch", killed)
        with pytest.raises(Killed):
            tick_until_killed()
    assert holders() == [("cuda", 0, deployment.pk)]
    Replica.objects.update(lease_until="2020-01-01T00:00:00Z")

    second = start(started, settings, tmp_path, gpu(80), gpu(80, index=1))
    tick_until_state(second, deployment, State.READY)

    assert holders() == [("cuda", 0, deployment.pk)]
    assert EndpointLease.objects.get().fence == replica_of(deployment).fence


def test_the_lease_of_a_replica_that_now_runs_on_another_machine_ends_once_its_process_here_has_ended(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    """The replica was leased a device on this machine, and the supervisor of another machine started it there. A
    process of the replica, which no row records, may still use the device.
    """
    here = start(started, settings, tmp_path, gpu(80))
    deployment = make_deployment(model)
    elsewhere = {"supervisor": "there:1:abcd", "node": "there", "pid": 1, "lease_until": "2100-01-01T00:00:00Z"}
    make_replica(deployment, **elsewhere)
    EndpointLease.objects.create(
        device=Device.objects.get(),
        organization_id=deployment.organization_id,
        deployment_id=deployment.pk,
        replica=f"{deployment.pk}-0",
        fence=1,
        since="2020-01-01T00:00:00Z",
    )
    with _locked(here.config, f"{deployment.pk}-0") or nullcontext() as process:
        assert process is not None
        here.tick()
        assert holders() == [("cuda", 0, deployment.pk)]

    here.tick()

    assert holders() == []
    Replica.objects.update(pid=None, node="")


def test_each_replica_that_ends_gives_back_only_its_own_device(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    supervisor = start(started, settings, tmp_path, *(gpu(80, index=index) for index in range(3)))
    deployment = make_deployment(model)
    deployment_scale(deployment=deployment, num_replicas=3)
    tick_until_state(supervisor, deployment, State.READY)
    assert len(holders()) == 3

    deployment_scale(deployment=deployment, num_replicas=1)

    tick_until(supervisor, lambda: len(holders()) == 1)
    assert EndpointLease.objects.get().replica == f"{deployment.pk}-0"


def test_an_endpoint_is_charged_at_the_price_of_its_device(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    supervisor = start(started, settings, tmp_path, gpu(80, price_per_hour=2.5))
    deployment = make_deployment(model)
    tick_until_state(supervisor, deployment, State.READY)

    deployment_stop(deployment=deployment)
    tick_until_state(supervisor, deployment, State.STOPPED)

    line = LedgerLine.objects.get(object_id=deployment.pk)
    assert (line.device_kind, line.price_nanousd) == ("cuda", 2_500_000_000)


def test_a_supervisor_without_stated_devices_does_not_use_the_devices_of_workers(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, db: None
) -> None:
    state(settings, gpu(80, index=6))
    devices_register()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    config = settings.SLIPSTREAM.model_copy(update={"devices": ()})

    assert device_for_engine(config, ending=[]) == "7"
    with pytest.raises(NoFreeDevice):
        device_for_engine(config, ending=["7"])


def test_a_device_cannot_be_listed_both_in_devices_and_in_endpoint_devices() -> None:
    with pytest.raises(ValidationError, match="must not have a device in common"):
        Config(devices=(gpu(80, index=2),), endpoint_devices="1, 2")


def test_an_endpoint_gets_only_a_device_of_the_asked_model(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    supervisor = start(started, settings, tmp_path, gpu(24, model="L4"), gpu(80, index=1))
    first = make_deployment(model)
    Deployment.objects.filter(pk=first.pk).update(hardware="H100")
    tick_until_state(supervisor, first, State.READY)

    second, third = make_deployment(model), make_deployment(model)
    for deployment, asked in ((second, "H100"), (third, "B200")):
        Deployment.objects.filter(pk=deployment.pk).update(hardware=asked)

    tick_until_blocked(supervisor, second, "no_free_device")
    tick_until_blocked(supervisor, third, "no_such_hardware")

    assert holders() == [("cuda", 1, first.pk)]


@pytest.mark.parametrize(("asked", "code"), [("cuda", "no_such_hardware"), ("cpu", None)])
def test_a_machine_without_stated_devices_starts_only_endpoints_for_its_kind_of_device(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel, asked: str, code: str | None
) -> None:
    supervisor = start(started, settings, tmp_path)
    deployment = make_deployment(model)
    Deployment.objects.filter(pk=deployment.pk).update(hardware=asked)

    if code is None:
        tick_until_state(supervisor, deployment, State.READY)
    else:
        tick_until_blocked(supervisor, deployment, code)

    assert blocked_code(deployment) == code


def test_the_devices_of_a_supervisor_are_registered_before_its_first_tick(
    settings: Settings, tmp_path: Path, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    state(settings, gpu(80), data_dir=tmp_path)
    stop, present = threading.Event(), list[Device]()
    supervisor = Supervisor(settings.SLIPSTREAM, timings=TIMINGS)

    def tick() -> None:
        present.extend(endpoint_devices_present())
        stop.set()

    monkeypatch.setattr(supervisor, "tick", tick)
    _supervise(supervisor, stop)

    assert [device.index for device in present] == [0]


def test_an_engine_that_was_started_before_the_devices_were_stated_keeps_its_device(
    started: list[Supervisor], settings: Settings, tmp_path: Path, model: BaseModel
) -> None:
    earlier, later = make_deployment(model), make_deployment(model)
    make_replica(earlier, node="here", device="0", pid=1, process_started="1", port=1)
    supervisor = start(started, settings, tmp_path, gpu(24), gpu(80, index=1))

    leases_adopt(supervisor.config)
    leases_adopt(supervisor.config)  # a second time has no effect
    Replica.objects.filter(deployment=earlier).update(lease_until=from_now(60.0))  # as if its supervisor were alive
    tick_until_state(supervisor, later, State.READY)

    assert holders() == [("cuda", 0, earlier.pk), ("cuda", 1, later.pk)]
    devices_register()
    make_job(model.organization, memory_needed={"cuda": GB})
    assert job_claim_next(worker="worker") is None
