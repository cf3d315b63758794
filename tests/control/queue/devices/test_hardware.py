"""GET /v1/hardware lists the present devices with memory, price, total number and number of free devices."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client
from pytest_django import Settings

from control.billing.usage.device_time import device_price_set
from control.queue.devices.models import Device
from control.queue.devices.services import devices_register
from control.queue.jobs.services import job_claim_next
from control.tenants.accounts.models import Organization
from tests.control.factories import make_job
from tests.control.queue.devices.helpers import GB, cpu, gpu, state
from tests.control.queue.jobs.helpers import expire_lease

pytestmark = pytest.mark.django_db


def test_equal_devices_of_all_machines_are_one_entry_with_their_number_and_price(
    client: Client, settings: Settings
) -> None:
    device_price_set(device_kind="cpu", hour_nanousd=100_000_000)
    for machine in ("a", "b"):
        state(settings, gpu(80, price_per_hour=2.5), gpu(80, index=1, price_per_hour=2.5), machine=machine)
        devices_register()
    state(settings, cpu(16), machine="c")
    devices_register()

    response = client.get("/v1/hardware")

    common = {"object": "hardware"}
    assert response.json() == {
        "object": "list",
        "data": [
            {
                **common,
                "name": "cpu",
                "device_kind": "cpu",
                "model": None,
                "memory_bytes": 16 * GB,
                "price_per_hour": 0.1,
                "count": 1,
                "free": 1,
            },
            {
                **common,
                "name": "H100",
                "device_kind": "cuda",
                "model": "H100",
                "memory_bytes": 80 * GB,
                "price_per_hour": 2.5,
                "count": 4,
                "free": 4,
            },
        ],
    }


def test_a_device_that_another_organizations_job_holds_is_not_free_until_its_lease_expires(
    client: Client, settings: Settings, other_organization: Organization
) -> None:
    state(settings, gpu(80), gpu(80, index=1))
    devices_register()
    job = make_job(other_organization, memory_needed={"cuda": GB})
    assert job_claim_next(worker="worker") is not None

    while_held = numbers(client)
    expire_lease(job)

    assert (while_held, numbers(client)) == ([(2, 1)], [(2, 2)])


def test_a_device_that_is_not_renewed_is_left_out(client: Client, settings: Settings) -> None:
    state(settings, gpu(80), machine="lost")
    devices_register()
    Device.objects.update(lease_until=Now() - timedelta(seconds=1))
    state(settings, gpu(40))
    devices_register()

    assert numbers(client) == [(1, 1)]


def test_if_a_worker_states_no_memory_and_price_they_come_from_the_configuration(
    client: Client, settings: Settings
) -> None:
    state(settings, device="cpu", device_memory_bytes={"cpu": 32 * GB}, price_per_gpu_hour=0.5)
    devices_register()

    (entry,) = client.get("/v1/hardware").json()["data"]

    assert (entry["device_kind"], entry["memory_bytes"], entry["price_per_hour"]) == ("cpu", 32 * GB, 0.5)


def numbers(client: Client) -> list[tuple[int, int]]:
    return [(entry["count"], entry["free"]) for entry in client.get("/v1/hardware").json()["data"]]
