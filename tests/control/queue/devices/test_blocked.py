"""The API shows why no running worker can claim a waiting job."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from control.queue.devices.models import Device
from control.queue.devices.services import devices_register
from control.queue.jobs.services import job_claim_next
from control.tenants.accounts.models import Organization
from tests.control.factories import make_job
from tests.control.queue.devices.helpers import GB, cpu, gpu, state

pytestmark = pytest.mark.django_db


def blocked(client: Client, job_id: str) -> dict[str, str] | None:
    value: dict[str, str] | None = client.get(f"/v1/jobs/{job_id}").json()["blocked"]
    return value


def test_a_job_says_that_no_worker_is_running_until_one_has_registered(
    client: Client, organization: Organization, settings: Settings
) -> None:
    job = make_job(organization)

    before = blocked(client, job.pk)
    devices_register()

    assert before is not None
    assert before["code"] == "no_worker"
    assert blocked(client, job.pk) is None


def test_a_job_says_that_no_worker_is_running_if_all_devices_are_no_longer_renewed(
    client: Client, organization: Organization
) -> None:
    job = make_job(organization)
    devices_register()
    Device.objects.update(lease_until="2020-01-01T00:00:00Z")

    found = blocked(client, job.pk)

    assert found is not None
    assert found["code"] == "no_worker"


@pytest.mark.parametrize(
    ("needed", "fits"),
    [
        (None, True),
        ({"cuda": 80 * GB}, True),
        ({"cuda": 80 * GB + 1}, False),
        ({"cpu": 16 * GB}, True),
        ({"cpu": 16 * GB + 1, "cuda": 81 * GB}, False),
        ({"cpu": 17 * GB, "cuda": 1}, True),
        ({}, False),
    ],
)
def test_exactly_the_jobs_that_a_worker_with_free_devices_would_not_claim_are_blocked(
    client: Client, organization: Organization, settings: Settings, needed: dict[str, int] | None, fits: bool
) -> None:
    state(settings, gpu(80), cpu(16))
    devices_register()
    job = make_job(organization, memory_needed=needed)

    found = blocked(client, job.pk)

    assert (found is None) == fits
    assert (job_claim_next(worker="worker") is not None) == fits
    if found is not None:
        assert found["code"] == "no_device_fits"
        assert "80.0 GB (cuda)" in found["message"]
        assert "16.0 GB (cpu)" in found["message"]


def test_a_job_is_not_blocked_while_all_devices_that_fit_it_are_held(
    client: Client, organization: Organization, settings: Settings
) -> None:
    state(settings, gpu(80))
    devices_register()
    make_job(organization, memory_needed={"cuda": GB})
    assert job_claim_next(worker="worker") is not None

    waiting = make_job(organization, memory_needed={"cuda": GB})

    assert blocked(client, waiting.pk) is None


def test_no_job_is_blocked_while_a_worker_without_stated_devices_runs(
    client: Client, organization: Organization, settings: Settings
) -> None:
    state(settings, cpu(1), machine="a")
    devices_register()
    state(settings, machine="b")
    devices_register()

    assert blocked(client, make_job(organization, memory_needed={"cuda": 100 * GB}).pk) is None


def test_a_running_job_is_not_blocked(client: Client, organization: Organization, settings: Settings) -> None:
    devices_register()
    job = make_job(organization)
    job_claim_next(worker="worker")
    Device.objects.all().delete()

    assert blocked(client, job.pk) is None


def test_a_page_of_jobs_reads_the_devices_once(client: Client, organization: Organization) -> None:
    make_job(organization)
    client.get("/v1/jobs")  # the first request of a key also records that the key was used

    def num_queries() -> int:
        with CaptureQueriesContext(connection) as queries:
            client.get("/v1/jobs")
        return len(queries)

    one = num_queries()
    for _ in range(15):
        make_job(organization)

    assert num_queries() == one
