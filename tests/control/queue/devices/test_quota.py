"""An organization has a limit for the devices with stated memory that its jobs and endpoints hold together."""

import pytest
from django.db import transaction
from django.test import Client
from pytest_django import Settings

from control.core.database_clock import from_now
from control.queue.devices.endpoints import EndpointClaim, NoDevice, endpoint_device_lease, endpoint_leases_adopt
from control.queue.devices.models import Device, EndpointLease
from control.queue.devices.services import devices_register, endpoint_devices_register, endpoint_devices_renew
from control.queue.jobs.services import job_claim_next, job_succeed
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits
from tests.control.factories import make_job, make_organization
from tests.control.queue.devices.helpers import GB, cpu, gpu, state

pytestmark = pytest.mark.django_db
NEEDED = {"cuda": GB}


def start(settings: Settings, num_devices: int) -> None:
    state(settings, *(gpu(80, index=index) for index in range(num_devices)))
    devices_register()
    endpoint_devices_renew()


def limit(organization: Organization, devices: int) -> None:
    Limits.objects.update_or_create(pk=organization.pk, defaults={"devices": devices})


def lease(organization: Organization, replica: str) -> None:
    claim = EndpointClaim(
        organization_id=organization.pk,
        deployment_id=replica.partition("-")[0],
        replica=replica,
        fence=1,
        memory_needed=NEEDED,
    )
    with transaction.atomic():
        endpoint_device_lease(claim)


def claim_next() -> Claim | None:
    return job_claim_next(worker="worker")


def test_jobs_and_endpoints_share_the_limit(settings: Settings, organization: Organization) -> None:
    start(settings, 4)
    limit(organization, 2)
    lease(organization, "dep_1-0")
    first, second = (make_job(organization, memory_needed=NEEDED) for _ in range(2))
    claim = claim_next()
    assert claim is not None

    assert claim_next() is None
    with pytest.raises(NoDevice) as refused:
        lease(organization, "dep_2-0")

    assert refused.value.code == "devices_quota_exceeded"
    assert f"2 of at most 2 devices: 1 by jobs ({claim.job_id}) and 1 by endpoints (dep_1-0)" in str(refused.value)
    job_succeed(claim=claim, result={})
    following = claim_next()
    assert following is not None
    assert {claim.job_id, following.job_id} == {first.pk, second.pk}


def test_a_replica_that_holds_a_device_keeps_it_at_the_limit(settings: Settings, organization: Organization) -> None:
    start(settings, 1)
    limit(organization, 1)
    for _ in range(2):
        lease(organization, "dep_1-0")

    assert EndpointLease.objects.count() == 1


def test_an_organization_at_its_limit_does_not_block_others(settings: Settings) -> None:
    start(settings, 4)
    full, forbidden, other = (make_organization() for _ in range(3))
    limit(full, 1)
    limit(forbidden, 0)
    lease(full, "dep_1-0")
    make_job(full, memory_needed=NEEDED)
    make_job(forbidden, memory_needed=NEEDED)
    job = make_job(other, memory_needed=NEEDED)

    claim = claim_next()

    assert claim is not None
    assert claim.job_id == job.pk
    assert claim_next() is None


def test_the_limit_of_the_installation_applies_to_organizations_without_their_own(settings: Settings) -> None:
    state(settings, gpu(80), max_devices=0)
    devices_register()
    allowed = make_organization()
    limit(allowed, 1)
    make_job(make_organization(), memory_needed=NEEDED)
    job = make_job(allowed, memory_needed=NEEDED)

    claim = claim_next()

    assert claim is not None
    assert claim.job_id == job.pk
    assert claim_next() is None


def test_devices_that_are_shared_do_not_count(settings: Settings, organization: Organization) -> None:
    state(settings)
    devices_register()
    limit(organization, 1)
    for _ in range(3):
        make_job(organization)

    assert all(claim_next() is not None for _ in range(3))


def test_a_job_on_a_shared_device_takes_no_place_of_an_endpoint(settings: Settings, organization: Organization) -> None:
    state(settings, machine="shared")
    devices_register()
    limit(organization, 1)
    make_job(organization, memory_needed=NEEDED)
    assert claim_next() is not None
    start(settings, 1)

    lease(organization, "dep_1-0")

    assert EndpointLease.objects.count() == 1


def test_an_engine_that_is_adopted_holds_the_gpu_of_its_number_and_not_the_processor(
    settings: Settings, organization: Organization
) -> None:
    state(settings, cpu(80), gpu(80))
    endpoint_devices_register()
    engine = EndpointClaim(
        organization_id=organization.pk, deployment_id="dep_1", replica="dep_1-0", fence=1, memory_needed=NEEDED
    )

    endpoint_leases_adopt({0: engine})

    assert list(EndpointLease.objects.values_list("device__kind", flat=True)) == ["cuda"]


def test_a_waiting_job_says_what_holds_the_devices(
    client: Client, settings: Settings, organization: Organization
) -> None:
    start(settings, 4)
    limit(organization, 1)
    job = make_job(organization, memory_needed=NEEDED)
    assert client.get(f"/v1/jobs/{job.pk}").json()["blocked"] is None

    lease(organization, "dep_1-0")

    blocked = client.get(f"/v1/jobs/{job.pk}").json()["blocked"]
    assert blocked["code"] == "devices_quota_exceeded"
    assert "1 of at most 1 devices: 1 by endpoints (dep_1-0)" in blocked["message"]


def test_a_replica_of_a_lost_machine_gets_a_device_of_another_machine_even_at_the_limit(
    settings: Settings, organization: Organization
) -> None:
    state(settings, gpu(80), machine="lost")
    endpoint_devices_renew()
    limit(organization, 1)
    lease(organization, "dep_1-0")
    start(settings, 3)

    lease(organization, "dep_1-0")
    assert EndpointLease.objects.count() == 2  # the lost machine may come back with its engine
    limit(organization, 2)
    make_job(organization, memory_needed=NEEDED)
    assert claim_next() is not None
    with pytest.raises(NoDevice, match=r"2 of at most 2 devices: 1 by jobs \(\S+\) and 1 by endpoints \(dep_1-0\)"):
        lease(organization, "dep_2-0")


def test_a_new_supervisor_deletes_the_leases_on_a_machine_that_was_lost_a_day_ago(
    settings: Settings, organization: Organization
) -> None:
    for machine in ("lost", "silent"):
        state(settings, gpu(80), machine=machine)
        endpoint_devices_renew()
        lease(organization, f"dep_{machine}-0")
    Device.objects.filter(machine="lost").update(endpoints_until=from_now(-90_000), lease_until=from_now(-90_000))
    Device.objects.filter(machine="silent").update(endpoints_until=from_now(-80_000), lease_until=from_now(-90_000))

    state(settings, gpu(80))
    endpoint_devices_register()

    assert list(EndpointLease.objects.values_list("replica", flat=True)) == ["dep_silent-0"]
    assert set(Device.objects.values_list("machine", flat=True)) == {"silent", "here"}
