"""The cost so far of an evaluation, pipeline or fine-tuning job is the cost that the ledger records for it."""

import datetime as dt
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from control.billing.ledger.models import Subject
from control.billing.usage.device_time import device_time_add
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.workflows.batches.models import Batch
from control.workflows.evaluations.services import evaluation_start
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import make_job
from tests.control.workflows.batches.helpers import make_batch
from tests.control.world import World

DOLLAR = 10**9  # in nanodollars


@pytest.fixture(autouse=True)
def _price(db: None) -> None:
    call_command("device_price_set", "cuda", "3")


def use_device(job: Job, subject: Subject, *, attempt: int = 1) -> None:
    """Records one hour, which costs 3 dollars."""
    now = timezone.now()
    device_time_add(
        caller=Caller(organization_id=job.organization_id),
        subject=subject,
        object_id=job.pk,
        sequence=str(attempt),
        device_kind="cuda",
        since=now - dt.timedelta(hours=1),
        until=now,
    )


def start_evaluation(world: World) -> Job:
    started: Any = evaluation_start(
        speculator=world.speculator, prompts=world.file, rows_key="rows", settings={}, memory_needed={}
    )
    job: Job = started.job
    return job


def test_the_cost_of_an_evaluation_is_that_of_the_device_time_of_its_attempts(
    client: Client, organization: Organization
) -> None:
    world = World(organization)
    first, second = start_evaluation(world), start_evaluation(world)
    for attempt in (1, 2):
        use_device(first, Subject.EVALUATION_TIME, attempt=attempt)

    listed = {row["job_id"]: row for row in client.get("/v1/evaluations").json()["data"]}

    assert {job_id: row["cost"]["value"] for job_id, row in listed.items()} == {first.pk: 6, second.pk: 0}
    assert client.get(f"/v1/evaluations/{listed[first.pk]['id']}").json() == listed[first.pk]


def test_the_cost_of_a_pipeline_and_of_its_fine_tuning_job_is_the_cost_of_its_tokens_and_all_its_jobs(
    client: Client, organization: Organization
) -> None:
    world = World(organization)
    batch = make_batch(organization)
    Batch.objects.filter(pk=batch.pk).update(cost_nanousd=DOLLAR // 2)
    training, evaluation = make_job(organization), make_job(organization, kind=Job.Kind.EVALUATION)
    Pipeline.objects.filter(pk=world.pipeline.pk).update(batch=batch, training_job=training, evaluation_job=evaluation)
    own = FineTuningJob.objects.create(organization=organization, pipeline=world.pipeline, training_file=world.file)
    path, job_path = f"/v1/pipelines/{world.pipeline.pk}", f"/v1/fine_tuning/jobs/{own.pk}"
    costs = []
    for job, subject in (
        (batch.job, Subject.BATCH_TIME),
        (training, Subject.TRAINING_TIME),
        (evaluation, Subject.EVALUATION_TIME),
        (make_job(organization), Subject.TRAINING_TIME),  # a job of another pipeline
    ):
        use_device(job, subject)
        costs.append(client.get(path).json()["cost"]["value"])
        assert client.get(job_path).json()["turbo"]["cost"]["value"] == costs[-1]

    assert costs == [3.5, 6.5, 9.5, 9.5]


def test_a_list_with_costs_takes_the_same_number_of_queries_for_any_number_of_rows(
    client: Client, organization: Organization
) -> None:
    world, counts = World(organization), []
    client.get("/v1/evaluations")  # the first request with a key also records that the key is used
    for _ in range(2):
        for _ in range(3):
            use_device(start_evaluation(world), Subject.EVALUATION_TIME)
        with CaptureQueriesContext(connection) as queries:
            rows = client.get("/v1/evaluations").json()["data"]
        assert all(row["cost"]["value"] == 3 for row in rows)
        counts.append(len(queries))

    assert counts[0] == counts[1]


def test_the_cost_of_a_job_that_trains_an_adapter_is_that_of_its_training(
    client: Client, organization: Organization
) -> None:
    own = World(organization).fine_tuning_job
    use_device(own.job, Subject.TRAINING_TIME)
    use_device(make_job(organization), Subject.TRAINING_TIME)  # another job

    assert client.get(f"/v1/fine_tuning/jobs/{own.pk}").json()["turbo"]["cost"]["value"] == 3
