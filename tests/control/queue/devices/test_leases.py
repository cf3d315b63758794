"""A worker claims only jobs that fit its free devices, and the lease of a device follows the lease of its job."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from control.billing.ledger.models import LedgerLine
from control.billing.usage.device_time import device_price_set
from control.queue.devices.models import Device, DeviceLease
from control.queue.devices.selectors import devices_present, is_free, leases_valid
from control.queue.devices.services import devices_register
from control.queue.jobs.models import Job, Share
from control.queue.jobs.services import (
    job_cancel,
    job_claim_next,
    job_end_cancelled,
    job_pause_on_request,
    job_release,
    job_renew,
    job_set_memory,
    job_succeed,
)
from control.queue.jobs.state import Claim, LeaseLost
from tests.control.factories import make_job, make_organization
from tests.control.queue.devices.helpers import GB, cpu, gpu, state
from tests.control.queue.jobs.helpers import expire_lease, submit

pytestmark = pytest.mark.django_db


def job_of(**gigabytes: int) -> Job:
    """Queues a job. Args: gigabytes: the device memory that the job needs, by kind of device."""
    return make_job(memory_needed={kind: number * GB for kind, number in gigabytes.items()})


def start(settings: Settings, *devices: object, machine: str = "here") -> None:
    """Registers this process as a worker that offers these devices of `machine`."""
    state(settings, *devices, machine=machine)  # type: ignore[arg-type]
    devices_register()


def claim_next() -> Claim:
    claim = job_claim_next(worker="worker")
    assert claim is not None
    return claim


def holders() -> list[tuple[str, int, str]]:
    """Returns the machine and index of each held device, with the id of the job."""
    leases = leases_valid().order_by("device__machine", "device__index")
    return list(leases.values_list("device__machine", "device__index", "job_id"))


def test_a_worker_claims_only_the_jobs_that_fit_its_device(settings: Settings) -> None:
    large, small = job_of(cuda=60), job_of(cuda=20)
    start(settings, gpu(40))

    claimed = claim_next()

    assert (claimed.job_id, claimed.visible_devices) == (small.pk, "0")
    assert job_claim_next(worker="worker") is None
    assert holders() == [("here", 0, small.pk)]
    start(settings, gpu(80), machine="there")
    assert claim_next().job_id == large.pk


def test_a_job_that_needs_exactly_the_memory_of_a_device_fits(settings: Settings) -> None:
    job = job_of(cuda=40)
    start(settings, gpu(40))

    assert claim_next().job_id == job.pk


def test_a_job_does_not_fit_a_kind_of_device_that_cannot_run_it(settings: Settings) -> None:
    job = job_of(cuda=1)
    start(settings, cpu(64))

    assert job_claim_next(worker="worker") is None
    start(settings, cpu(64), gpu(80, index=3))
    assert claim_next().visible_devices == "3"
    assert holders() == [("here", 3, job.pk)]


def test_a_job_whose_memory_is_unknown_fits_every_device(settings: Settings) -> None:
    jobs = [submit(), job_of(cpu=0, cuda=0)]
    start(settings, gpu(1), cpu(1))

    assert {claim_next().job_id for _ in jobs} == {job.pk for job in jobs}


def test_a_job_takes_the_smallest_device_that_fits(settings: Settings) -> None:
    job_of(cuda=30)
    start(settings, gpu(80), gpu(24, index=1), gpu(40, index=2))

    assert claim_next().visible_devices == "2"


def test_a_device_is_held_by_one_job_at_a_time_until_the_job_ends(settings: Settings) -> None:
    first, second = job_of(cuda=10), job_of(cuda=10)
    start(settings, gpu(40))
    claimed = claim_next()
    assert job_claim_next(worker="another worker of the machine") is None

    job_succeed(claim=claimed, result={})

    assert claim_next().job_id == ({first.pk, second.pk} - {claimed.job_id}).pop()


@pytest.mark.parametrize("end", ["release", "pause"])
def test_a_job_that_is_interrupted_gives_its_device_back(settings: Settings, end: str) -> None:
    job = job_of(cuda=10)
    start(settings, gpu(40))
    claimed = claim_next()

    if end == "release":
        job_release(claim=claimed)
    else:
        job_pause_on_request(job=job, why={"code": "paused_on_request", "message": "Paused."})

    assert holders() == []
    assert devices_present().filter(is_free()).exists()


def test_the_lease_of_a_killed_worker_passes_on_once_with_the_lease_of_the_job(settings: Settings) -> None:
    job = job_of(cuda=10)
    start(settings, gpu(40), machine="killed")
    first = claim_next()
    start(settings, gpu(40), machine="other")
    assert job_claim_next(worker="other") is None

    expire_lease(job)
    second = claim_next()

    assert (first.fence, second.fence) == (1, 2)
    assert holders() == [("other", 0, job.pk)]
    assert job_claim_next(worker="other") is None
    assert DeviceLease.objects.count() == 1


def test_a_killed_worker_that_restarts_gets_its_device_when_the_lease_of_the_job_has_expired(
    settings: Settings,
) -> None:
    job = job_of(cuda=10)
    start(settings, gpu(40))
    claim_next()
    waiting = job_of(cuda=10)

    devices_register()

    assert job_claim_next(worker="restarted") is None
    expire_lease(job)
    assert claim_next().job_id in {job.pk, waiting.pk}  # whose turn it is depends on the organizations
    assert job_claim_next(worker="restarted") is None


def test_a_suspended_worker_loses_its_job_if_the_device_has_passed_to_another_job(settings: Settings) -> None:
    """The lease of the first job expires. Before its worker wakes up, it is the turn of another organization."""
    first = job_of(cuda=10)
    start(settings, gpu(40))
    suspended = claim_next()
    expire_lease(first)
    Share.objects.create(pk=first.organization_id, used_seconds=60.0)
    second = job_of(cuda=10)
    claimed = claim_next()

    with pytest.raises(LeaseLost):
        job_renew(claim=suspended)

    assert claimed.job_id == second.pk
    assert not job_renew(claim=claimed)
    assert holders() == [("here", 0, second.pk)]


def test_a_job_whose_model_turns_out_to_be_too_large_for_its_device_is_not_claimed_for_it_again(
    settings: Settings,
) -> None:
    job = submit()
    start(settings, gpu(40))
    claimed = claim_next()

    fits = [job_set_memory(claim=claimed, memory_needed={"cuda": number * GB}) for number in (20, 60)]
    job_release(claim=claimed)

    assert fits == [True, False]
    assert job_claim_next(worker="worker") is None
    start(settings, gpu(80), machine="other")
    assert claim_next().job_id == job.pk


def test_a_cancelled_job_is_claimed_without_a_device(settings: Settings) -> None:
    """A worker only has to assemble the partial results, so neither memory nor a free device is needed."""
    running, large = job_of(cuda=10), job_of(cuda=99)
    start(settings, gpu(40))
    claim_next()
    job_cancel(job=large)

    claimed = claim_next()
    job_end_cancelled(claim=claimed)

    assert claimed.job_id == large.pk
    assert holders() == [("here", 0, running.pk)]


def test_without_stated_devices_every_job_is_claimed_and_the_device_is_shared(settings: Settings) -> None:
    jobs = [job_of(cpu=10**6), job_of(cuda=10**6), make_job(memory_needed={}), submit()]
    start(settings)

    claims = [claim_next() for _ in jobs]

    assert {claim.job_id for claim in claims} == {job.pk for job in jobs}
    assert {claim.visible_devices for claim in claims} == {None}
    assert {job_id for _, _, job_id in holders()} == {job.pk for job in jobs}


def test_without_stated_devices_a_worker_claims_jobs_although_it_could_not_register(settings: Settings) -> None:
    job = submit()
    state(settings)

    assert claim_next().job_id == job.pk
    assert holders() == []


def test_the_lease_of_a_job_is_deleted_when_the_job_ends(settings: Settings) -> None:
    start(settings)
    for _ in range(3):
        submit()
        job_succeed(claim=claim_next(), result={})

    assert not DeviceLease.objects.exists()


def test_a_large_job_of_one_organization_does_not_block_another_organization(settings: Settings) -> None:
    make_job(make_organization(), memory_needed={"cuda": 60 * GB})
    small = make_job(make_organization(), memory_needed={"cuda": 20 * GB})
    start(settings, gpu(40))

    assert claim_next().job_id == small.pk


def test_device_time_is_charged_at_the_price_that_the_device_had_when_it_was_leased(settings: Settings) -> None:
    device_price_set(device_kind="cuda", hour_nanousd=10**9)
    prices = []
    for price in (2.5, None):
        start(settings, gpu(40, price_per_hour=price))
        job = job_of(cuda=10)
        claimed = claim_next()
        Job.objects.filter(pk=job.pk).update(claimed_at=Now() - timedelta(hours=1))
        job_succeed(claim=claimed, result={})
        line = LedgerLine.objects.get(object_id=job.pk)
        prices.append((line.device_kind, line.price_nanousd, round(line.cost_nanousd / 10**9, 2)))

    assert prices == [("cuda", 2_500_000_000, 2.5), ("cuda", 10**9, 1.0)]


def test_a_device_that_was_deleted_is_leased_again_after_it_is_registered(settings: Settings) -> None:
    job = job_of(cuda=10)
    start(settings, gpu(40))
    Device.objects.all().delete()
    assert job_claim_next(worker="worker") is None

    devices_register()

    assert claim_next().job_id == job.pk
