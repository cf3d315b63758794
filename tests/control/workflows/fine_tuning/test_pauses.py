"""Customers pause and resume fine-tuning jobs. A pause takes the job from its worker.

A customer cannot resume a job that is paused because of a spend cap.
"""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.billing.spending.models import SpendCap
from control.billing.spending.services import spend_cap_delete
from control.queue.jobs.models import JobEvent, Worker
from control.queue.jobs.services import job_claim, job_commit_checkpoint, job_succeed, worker_beat
from control.queue.jobs.shards import ShardRows
from control.queue.jobs.state import Claim, LeaseLost
from control.tenants.accounts.models import Organization
from control.workflows.batches.caps import batch_cap_reached, batch_pause, batches_review
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_commit_shard
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.selectors import pipeline_fresh
from tests.control.factories import client_of, make_base_model, make_file
from tests.control.queue.jobs.helpers import add_shards, claim
from tests.control.workflows.fine_tuning.test_api import JOBS, create, fine_tune_rows, pipeline_of
from tests.control.workflows.pipelines.helpers import advance_to_stage, end_batch, end_evaluation

pytestmark = pytest.mark.django_db


@pytest.fixture
def body(client: Client, organization: Organization) -> Any:
    """The response to the creation of a fine-tuning job, which no worker has claimed yet."""
    make_base_model("tiny", organization)
    return create(client, make_file(organization, fine_tune_rows(), purpose="fine-tune")).json()


@pytest.fixture
def url(body: dict[str, Any]) -> str:
    return f"{JOBS}/{body['id']}"


@pytest.fixture
def pipeline(body: dict[str, Any]) -> Pipeline:
    return pipeline_fresh(pipeline_of(body))


def batch_of(pipeline: Pipeline) -> Batch:
    return Batch.objects.select_related("job", "quote").get(pk=pipeline.batch_id)


def reach_cap(pipeline: Pipeline) -> SpendCap:
    """Pauses the batch as a worker does when a spend cap is reached."""
    cap = SpendCap.objects.create(organization=pipeline.organization, nanousd=0)
    batch = batch_of(pipeline)
    reached = batch_cap_reached(batch)
    assert reached is not None
    batch_pause(batch=batch, claim=claim(batch.job), reached=reached)
    return cap


def test_paused_training_continues_from_its_checkpoint(client: Client, url: str, pipeline: Pipeline) -> None:
    job = advance_to_stage("train", pipeline).training_job
    assert job is not None
    first_claim = claim(job)
    job_commit_checkpoint(claim=first_claim, storage_prefix="checkpoint-20", step=20)

    paused = client.post(f"{url}/pause").json()

    assert (paused["status"], paused["turbo"]["waiting_for"]) == ("paused", "resume")
    assert paused["turbo"]["paused"]["code"] == "paused_on_request"
    with pytest.raises(LeaseLost):
        job_commit_checkpoint(claim=first_claim, storage_prefix="late", step=30)
    assert job_claim(job_id=job.pk, worker="other") is None

    resumed = client.post(f"{url}/resume").json()
    assert (resumed["status"], resumed["turbo"]["paused"]) == ("running", None)
    with pytest.raises(LeaseLost):
        job_succeed(claim=first_claim, result={})
    assert claim(job, worker="other").fence == first_claim.fence + 1
    job.refresh_from_db()
    assert (job.checkpoint_key, job.stalled_attempts) == ("checkpoint-20", 1), (
        "only the current attempt may count, not the one that the pause ended"
    )
    messages = [event["message"] for event in client.get(f"{url}/events").json()["data"]]
    assert messages[:2] == ["The job continues", "The job is paused: Paused on request, until it is resumed."]


@pytest.mark.parametrize("stage", ["distil", "train", "evaluate"])
def test_every_stage_with_a_job_can_be_paused_before_a_worker_claims_it(
    client: Client, url: str, pipeline: Pipeline, stage: str
) -> None:
    advance_to_stage(stage, pipeline)
    before = client.get(url).json()

    assert client.post(f"{url}/pause").json()["status"] == "paused"
    assert client.get(url).json()["status"] == "paused"
    assert client.post(f"{url}/resume").json() == before


def test_pause_and_resume_can_be_repeated(client: Client, url: str, pipeline: Pipeline) -> None:
    assert [client.post(f"{url}/pause").json()["status"] for _ in range(2)] == ["paused", "paused"]
    assert [client.post(f"{url}/resume").json()["status"] for _ in range(2)] == ["queued", "queued"]

    events = JobEvent.objects.filter(job=batch_of(pipeline).job_id).order_by("seq")
    assert list(events.values_list("type", flat=True)) == ["queued", "paused", "resumed"]


def test_a_paused_job_can_be_cancelled(client: Client, url: str, pipeline: Pipeline) -> None:
    client.post(f"{url}/pause")

    assert client.post(f"{url}/cancel").json()["status"] == "cancelled"
    assert batch_of(pipeline).job.cancel_requested_at is not None
    assert claim(batch_of(pipeline).job).fence == 1, "a worker must be able to assemble the finished rows"


def test_raising_a_cap_does_not_end_a_customers_pause(client: Client, url: str, pipeline: Pipeline) -> None:
    cap = reach_cap(pipeline)
    client.post(f"{url}/pause")

    spend_cap_delete(cap=cap)
    batches_review()

    assert client.get(url).json()["turbo"]["waiting_for"] == "resume"
    assert client.post(f"{url}/resume").json()["turbo"]["paused"] is None


def test_a_customer_cannot_resume_a_job_that_a_cap_paused(client: Client, url: str, pipeline: Pipeline) -> None:
    reach_cap(pipeline)

    refused = client.post(f"{url}/resume")

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "spend_cap_reached")
    assert refused["x-should-retry"] == "false"
    job = client.get(url).json()
    assert (job["status"], job["turbo"]["waiting_for"]) == ("paused", "spend_cap")


def test_the_completion_window_of_a_paused_batch_is_extended(client: Client, url: str, pipeline: Pipeline) -> None:
    client.post(f"{url}/pause")
    Batch.objects.filter(pk=pipeline.batch_id).update(expires_at=timezone.now() - timedelta(hours=1))

    batches_review()
    assert client.get(url).json()["status"] == "paused"
    client.post(f"{url}/resume")

    expires_at = batch_of(pipeline).expires_at
    assert expires_at is not None
    assert expires_at > timezone.now() + timedelta(hours=23)


def test_a_job_stays_paused_if_its_batch_completes_at_the_same_time(
    client: Client, url: str, pipeline: Pipeline
) -> None:
    """The worker completes the batch just after the pause, but the pause has taken the job from the worker."""
    first_claim = claim(batch_of(pipeline).job)
    client.post(f"{url}/pause")

    end_batch(pipeline)

    assert client.get(url).json()["status"] == "paused"
    assert pipeline_fresh(pipeline).training_job is None
    client.post(f"{url}/resume")
    job_succeed(claim=claim(batch_of(pipeline).job), result={})
    assert first_claim.fence == 1
    assert end_batch(pipeline).training_job is not None


def test_a_shard_in_progress_at_a_pause_cannot_be_committed_and_is_computed_again(
    client: Client, url: str, pipeline: Pipeline
) -> None:
    batch = batch_of(pipeline)
    add_shards(batch.job, 4)
    first_claim = claim(batch.job)
    client.post(f"{url}/pause")

    def commit(claim: Claim) -> bool:
        rows = ShardRows(completed=4, failed=0, usage={})
        return batch_commit_shard(batch=batch, claim=claim, shard_no=0, storage_key=f"{claim.fence}", rows=rows)

    with pytest.raises(LeaseLost):
        commit(first_claim)
    client.post(f"{url}/resume")
    assert commit(claim(batch.job))


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_an_ended_job_is_neither_paused_nor_resumed(client: Client, url: str, pipeline: Pipeline, action: str) -> None:
    end_evaluation(advance_to_stage("evaluate", pipeline))

    refused = client.post(f"{url}/{action}")

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_fine_tuning_job_status")


def test_another_organization_can_neither_pause_nor_resume_a_job(
    client: Client, url: str, other_organization: Organization
) -> None:
    other_client = client_of(other_organization)

    assert other_client.post(f"{url}/pause").status_code == 404
    client.post(f"{url}/pause")
    assert other_client.post(f"{url}/resume").status_code == 404
    assert client.get(url).json()["status"] == "paused"


def test_a_queued_job_shows_whether_it_waits_for_a_worker_or_for_its_turn(
    client: Client, url: str, pipeline: Pipeline
) -> None:
    def waiting_for() -> Any:
        return client.get(url).json()["turbo"]["waiting_for"]

    worker_beat(worker="supervisor", role="deployments")
    assert waiting_for() == "worker"
    worker_beat(worker="other", role="jobs")
    assert waiting_for() == "turn"
    Worker.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=1))
    assert waiting_for() == "worker"
    claim(batch_of(pipeline).job)
    assert waiting_for() is None
