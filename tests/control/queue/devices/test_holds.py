"""The time for which jobs and endpoints held a device is shown as a share of the last hour and of the last day."""

import datetime as dt

import pytest
from django.utils import timezone
from pytest_django import Settings

from control.queue.devices.endpoints import endpoint_leases_end
from control.queue.devices.holds import DAY, HOUR, held_shares, hold_add
from control.queue.devices.models import Device, DeviceHold, DeviceLease, EndpointLease
from control.queue.devices.services import devices_register
from control.queue.jobs.models import Job, Share
from control.queue.jobs.services import job_claim_next, job_release, job_succeed
from control.queue.jobs.state import Claim
from tests.control.factories import make_job, make_organization
from tests.control.queue.devices.helpers import GB, gpu, state
from tests.control.queue.jobs.helpers import expire_lease

pytestmark = pytest.mark.django_db


@pytest.fixture
def device(settings: Settings) -> Device:
    state(settings, gpu(80))
    devices_register()
    return Device.objects.get()


def minutes_ago(minutes: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(minutes=minutes)


def claim_since(minutes: float) -> Claim:
    """Claims the next job, and moves the start of its device lease `minutes` into the past."""
    claim = job_claim_next(worker="worker")
    assert claim is not None
    DeviceLease.objects.update(since=minutes_ago(minutes))
    return claim


def shares(device: Device) -> tuple[float, float]:
    """Returns in percent for which shares of the last hour and day the device was held."""
    now = timezone.now()
    found = [held_shares([device], now=now, period=period).get(device.pk, 0.0) for period in (HOUR, DAY)]
    return round(100 * found[0]), round(100 * found[1])


def test_a_device_that_was_never_held_has_shares_of_zero(device: Device) -> None:
    assert shares(device) == (0, 0)


def test_only_the_part_of_a_hold_within_the_period_counts(device: Device) -> None:
    hold_add(device.pk, since=minutes_ago(90), until=minutes_ago(45))  # 15 minutes of the last hour
    hold_add(device.pk, since=minutes_ago(30), until=minutes_ago(15))
    hold_add(device.pk, since=minutes_ago(25 * 60), until=minutes_ago(20 * 60))  # 4 hours of the last day

    assert shares(device) == (50, round(100 * 5 / 24))


@pytest.mark.parametrize("end", ["succeed", "release"])
def test_the_time_of_a_job_counts_while_it_runs_and_after_its_end(device: Device, end: str) -> None:
    make_job(memory_needed={"cuda": GB})
    claim = claim_since(30)
    before = shares(device)

    job_succeed(claim=claim, result={}) if end == "succeed" else job_release(claim=claim)

    assert before == shares(device) == (50, 2)
    assert DeviceHold.objects.count() == 1
    assert not DeviceLease.objects.exists()


def test_the_time_of_a_lost_worker_counts_once_until_its_lease_expired(device: Device) -> None:
    first = make_job(memory_needed={"cuda": GB})
    claim_since(30)
    expire_lease(first)
    Job.objects.update(lease_until=minutes_ago(15))
    assert shares(device) == (0, 0)  # nobody has recorded the end yet
    Share.objects.create(pk=first.organization_id, used_seconds=60.0)
    make_job(memory_needed={"cuda": GB})

    second = claim_since(0)
    job_succeed(claim=second, result={})
    claim_since(0)  # the first job again, which now records that its attempt was lost

    assert shares(device) == (25, 1)


def test_the_time_of_an_endpoint_counts_while_it_holds_the_device_and_afterwards(device: Device) -> None:
    lease = EndpointLease.objects.create(
        device=device,
        organization=make_organization(),
        deployment_id="dep_1",
        replica="dep_1-0",
        fence=1,
        since=minutes_ago(30),
    )
    before = shares(device)

    for _ in range(2):  # another supervisor may end the same lease
        endpoint_leases_end([lease])

    assert before == shares(device) == (50, 2)
    assert DeviceHold.objects.count() == 1


def test_holds_that_ended_more_than_a_day_ago_are_deleted(device: Device) -> None:
    hold_add(device.pk, since=minutes_ago(60 * 40), until=minutes_ago(60 * 30))

    hold_add(device.pk, since=minutes_ago(10), until=minutes_ago(5))

    assert DeviceHold.objects.count() == 1
