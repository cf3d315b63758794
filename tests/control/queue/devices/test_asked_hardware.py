"""A job that asks for a kind or model of device is claimed only for such a device, and is blocked if there is none."""

import pytest
from django.test import Client
from pytest_django import Settings

from control.core.settings.config import StatedDevice
from control.queue.devices.services import devices_register
from control.queue.jobs.services import job_claim_next
from control.tenants.accounts.models import Organization
from tests.control.factories import make_job
from tests.control.queue.devices.helpers import GB, cpu, gpu, state

pytestmark = pytest.mark.django_db
L4 = gpu(24, index=1, model="L4")


@pytest.mark.parametrize(
    ("devices", "hardware", "index"),
    [
        ((gpu(80), L4), "H100", "0"),
        ((gpu(80), L4), "L4", "1"),
        ((gpu(80), L4), "cuda", "1"),  # the smallest of its kind
        ((gpu(80), cpu(4)), "cpu", ""),
        ((gpu(80), L4), "B200", None),
        ((cpu(99),), "cuda", None),
        ((gpu(8, model="L4"), gpu(80, index=1)), "L4", None),  # its memory does not suffice
    ],
)
def test_a_job_gets_only_a_device_of_the_asked_kind_or_model(
    settings: Settings, devices: tuple[StatedDevice, ...], hardware: str, index: str | None
) -> None:
    state(settings, *devices)
    devices_register()
    needed = {"cuda": 10 * GB, "cpu": GB}
    make_job(memory_needed=needed, hardware=hardware)

    claim = job_claim_next(worker="worker")

    assert (None if claim is None else claim.visible_devices) == index


def test_a_job_that_has_to_wait_for_its_device_lets_other_jobs_pass(settings: Settings) -> None:
    state(settings, L4)
    devices_register()
    organization = make_job(hardware="H100").organization
    second = make_job(organization)

    claim = job_claim_next(worker="worker")

    assert claim is not None
    assert claim.job_id == second.pk


@pytest.mark.parametrize(("hardware", "is_claimed"), [("cpu", True), ("cuda", False), ("", True)])
def test_a_worker_without_stated_devices_claims_only_jobs_for_its_kind_of_device(
    settings: Settings, hardware: str, is_claimed: bool
) -> None:
    state(settings, device="cpu")
    devices_register()
    make_job(hardware=hardware)

    assert (job_claim_next(worker="worker") is not None) == is_claimed


@pytest.mark.parametrize(
    ("hardware", "gigabytes", "code"),
    [("B200", 1, "no_such_hardware"), ("L4", 60, "no_device_fits"), ("L4", 1, None), ("H100", 60, None)],
)
def test_a_job_whose_device_is_not_present_or_too_small_is_blocked(
    client: Client, organization: Organization, settings: Settings, hardware: str, gigabytes: int, code: str | None
) -> None:
    state(settings, gpu(80), L4)
    devices_register()
    job = make_job(organization, memory_needed={"cuda": gigabytes * GB}, hardware=hardware)

    blocked = client.get(f"/v1/jobs/{job.pk}").json()["blocked"]

    assert (None if blocked is None else blocked["code"]) == code
    if code == "no_such_hardware":
        assert "'B200'" in blocked["message"]
        assert "['H100', 'L4', 'cuda']" in blocked["message"]
    if code == "no_device_fits":
        assert "24.0 GB (cuda)" in blocked["message"]
