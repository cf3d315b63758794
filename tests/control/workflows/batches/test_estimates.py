"""A running batch says when it is expected to end, and a waiting one how many jobs are claimed before it."""

import datetime as dt
import time
from pathlib import Path

import pytest
from django.db.models.functions import Now
from django.test import Client
from pytest_django import Settings

from control.core.settings.config import get_config
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.services import job_claim
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_validate
from tests.control.factories import make_job
from tests.control.workflows.batches.helpers import commit_shard, make_batch


@pytest.fixture(autouse=True)
def two_rows_per_shard(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 2})


def make_running_batch(organization: Organization, *, seconds: float) -> Batch:
    """Makes a batch of ten rows whose job was claimed `seconds` ago. Its copied rows would be the first two."""
    batch = make_batch(organization, num_rows=10)
    batch_validate(batch=batch)
    assert job_claim(job_id=batch.job_id, worker="worker") is not None
    Job.objects.filter(pk=batch.job_id).update(claimed_at=Now() - dt.timedelta(seconds=seconds))
    JobShard.objects.filter(job=batch.job, shard_no=0).update(storage_key="copied", completed=2)
    return batch


def seconds_left(client: Client, batch: Batch) -> float | None:
    end = client.get(f"/v1/batches/{batch.pk}").json()["estimated_finished_at"]
    return None if end is None else end - time.time()


def test_the_estimate_follows_the_rate_of_the_rows_that_the_current_attempt_has_answered(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    batch = make_running_batch(organization, seconds=100)
    assert seconds_left(client, batch) is None  # copied rows say nothing about the rate

    commit_shard(batch, 1, tmp_path, failed_rows=frozenset({2}))
    assert seconds_left(client, batch) == pytest.approx(300, abs=10)  # 2 rows in 100 s, 6 are left
    commit_shard(batch, 2, tmp_path)
    assert seconds_left(client, batch) == pytest.approx(100, abs=10)  # 4 rows in 100 s, 4 are left

    Job.objects.filter(pk=batch.job_id).update(fence=2)
    assert seconds_left(client, batch) is None  # another attempt may run at another rate
    (listed,) = client.get("/v1/batches").json()["data"]
    assert listed["estimated_finished_at"] is None


def test_a_batch_that_is_not_running_has_no_estimate(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    batch = make_running_batch(organization, seconds=100)
    commit_shard(batch, 1, tmp_path)
    assert seconds_left(client, batch) is not None

    for status in ("queued", "paused", "failed"):
        Job.objects.filter(pk=batch.job_id).update(status=status)
        assert seconds_left(client, batch) is None
    Job.objects.filter(pk=batch.job_id).update(status="running")
    Batch.objects.filter(pk=batch.pk).update(status="cancelling")
    assert seconds_left(client, batch) is None


def test_a_waiting_batch_shows_its_position(client: Client, organization: Organization) -> None:
    make_job(organization, priority=1)
    batch = make_batch(organization)

    body = client.get(f"/v1/batches/{batch.pk}").json()

    assert (body["queue_position"], body["estimated_finished_at"]) == (2, None)
    assert client.get("/v1/batches").json()["data"] == [body]
    Job.objects.filter(pk=batch.job_id).update(status="paused")
    assert client.get(f"/v1/batches/{batch.pk}").json()["queue_position"] is None
