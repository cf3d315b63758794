"""Real supervisors and a real worker share a simulated GPU, which an endpoint and a job never hold at the same time."""

import json
import threading
from collections.abc import Callable

import pytest
from django.conf import settings
from django.db import connection, transaction

from control.queue.devices.endpoints import EndpointClaim, NoDevice, endpoint_device_lease
from control.queue.devices.models import Device, EndpointLease
from control.queue.devices.selectors import devices_present, endpoint_devices_present, leases_valid
from control.queue.devices.services import devices_register
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim_next, job_submit
from control.serving.deployments.launchers.processes import ProcessIdentity
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_create, deployment_stop
from control.tenants.quotas.models import Limits
from control.tenants.row_security.scope import Across, across_tenants
from tests.control.queue.devices.helpers import GB, gpu
from tests.databases import needs_postgres
from tests.workers.supervisor.live import LiveStack, kill_9
from tests.workers.supervisor.test_deployment_supervisors import holds_nothing, processes_of_replicas, start_supervisor

BOTH = pytest.mark.parametrize("database_kind", ["sqlite", needs_postgres("postgresql")])
SECONDS = 90.0  # far more than the 15 s of a lease, because the machine may be busy


def start_machine(stack: LiveStack, num_devices: int) -> None:
    devices = [{"kind": "cuda", "index": index, "memory_bytes": 80 * GB} for index in range(num_devices)]
    stack.environment |= {"SLIPSTREAM_NODE_NAME": "here", "SLIPSTREAM_DEVICES": json.dumps(devices)}


def deploy(stack: LiveStack, name: str) -> Deployment:
    return deployment_create(organization=stack.organization, name=name, base_model=stack.base_model)


def is_ready(deployment: Deployment) -> bool:
    return Deployment.objects.filter(pk=deployment.pk, state=Deployment.State.READY).exists()


def wait_until(stack: LiveStack, condition: Callable[[], bool]) -> None:
    """Waits, and fails if a job and an endpoint hold the same device meanwhile."""

    def checked() -> bool:
        for device in Device.objects.all():
            jobs = list(leases_valid().filter(device=device).values_list("job_id", flat=True))
            endpoints = list(EndpointLease.objects.filter(device=device).values_list("replica", flat=True))
            # The second read of the jobs leaves out a job that ended before the endpoint got the device.
            both = set(jobs) & set(leases_valid().filter(device=device).values_list("job_id", flat=True))
            assert not (both and endpoints), f"{both} and {endpoints} hold {device}"
            assert len(endpoints) <= 1, f"{endpoints} hold {device}"
        return condition()

    stack.wait_until(checked, SECONDS)


@pytest.mark.wide
@BOTH
def test_a_killed_supervisors_engine_keeps_its_device_and_the_waiting_job_gets_it_once_the_engine_ends(
    stack: LiveStack,
) -> None:
    start_machine(stack, 1)
    killed = start_supervisor(stack)
    try:
        endpoint = deploy(stack, "endpoint")
        wait_until(stack, lambda: is_ready(endpoint))
        engine = Replica.objects.values_list("pid", flat=True).get()
        lease = EndpointLease.objects.get()
        stack.start_worker()
        wait_until(stack, devices_present().exists)
        batch = stack.make_batch(["a", "b"])
        kill_9(killed)
        wait_until(stack, lambda: not Replica.objects.filter(lease_until__gt=Device.objects.get().renewed_at).exists())
        following = start_supervisor(stack)
        wait_until(stack, lambda: holds_nothing(killed.pid))
        wait_until(stack, lambda: is_ready(endpoint))
        assert Replica.objects.values_list("pid", flat=True).get() == engine
        assert (EndpointLease.objects.get().pk, Job.objects.get(pk=batch.job_id).attempt) == (lease.pk, 0)

        deployment_stop(deployment=endpoint)

        wait_until(stack, lambda: Job.objects.get(pk=batch.job_id).status == Job.Status.SUCCEEDED)
        assert processes_of_replicas() == {}
        assert following.poll() is None
    finally:
        stack.close()
        for pid, started in Replica.objects.exclude(pid=None).values_list("pid", "process_started"):
            ProcessIdentity(pid or 0, started).kill()


@BOTH
def test_an_endpoint_waits_for_the_device_of_a_job_and_starts_when_the_job_ends(stack: LiveStack) -> None:
    start_machine(stack, 1)
    stack.start_worker(child=f"--limit {stack.allow(0)}")  # the batch cannot end yet
    try:
        batch = stack.make_batch(["a", "b"])
        wait_until(stack, lambda: leases_valid().filter(job=batch.job_id).exists())
        supervisors = [start_supervisor(stack) for _ in range(2)]
        wait_until(stack, endpoint_devices_present().exists)
        endpoints = [deploy(stack, f"endpoint-{number}") for number in range(2)]
        blocked = Replica.objects.filter(blocked__code="no_free_device")
        wait_until(stack, lambda: blocked.count() == 2)

        stack.allow(2)

        wait_until(stack, lambda: any(map(is_ready, endpoints)))
        assert Job.objects.get(pk=batch.job_id).status == Job.Status.SUCCEEDED
        assert len(processes_of_replicas()) == 1
        (first,) = filter(is_ready, endpoints)
        deployment_stop(deployment=first)
        (second,) = {*endpoints} - {first}
        wait_until(stack, lambda: is_ready(second))
        assert all(supervisor.poll() is None for supervisor in supervisors)
    finally:
        stack.close()
        for pid, started in Replica.objects.exclude(pid=None).values_list("pid", "process_started"):
            ProcessIdentity(pid or 0, started).kill()


@BOTH
def test_concurrent_claims_and_leases_neither_share_a_device_nor_exceed_the_quota(
    stack: LiveStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = tuple(gpu(80, index=index) for index in range(6))
    monkeypatch.setattr(
        settings, "SLIPSTREAM", settings.SLIPSTREAM.model_copy(update={"devices": devices, "node_name": "here"})
    )
    Limits.objects.create(organization=stack.organization, devices=3)
    for _ in range(6):
        job_submit(organization=stack.organization, kind=Job.Kind.TRAINING, params={}, memory_needed={"cuda": GB})
    with across_tenants(Across.COMMAND):
        devices_register()
    start, refusals = threading.Barrier(12), list[str]()

    def race(number: int) -> None:
        start.wait()
        try:
            if number % 2:
                job_claim_next(worker=f"worker {number}")
            else:
                _lease(stack, f"dep_{number}-0")
        except NoDevice as refusal:
            refusals.append(refusal.code)
        finally:
            connection.close()

    threads = [threading.Thread(target=race, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    held = [*leases_valid().values_list("device", flat=True), *EndpointLease.objects.values_list("device", flat=True)]
    assert len(held) == len(set(held)) == 3
    assert set(refusals) <= {"devices_quota_exceeded"}


def _lease(stack: LiveStack, replica: str) -> None:
    claim = EndpointClaim(
        organization_id=stack.organization.pk,
        deployment_id=replica.partition("-")[0],
        replica=replica,
        fence=1,
        memory_needed={"cuda": GB},
    )
    with across_tenants(Across.SUPERVISION), transaction.atomic():
        endpoint_device_lease(claim)
