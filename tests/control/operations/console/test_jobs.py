"""The console's page of a job shows charts and a log, refreshes itself, and is sent again only after a change."""

import re

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from control.core.settings.config import get_config
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.protocol import HELD
from control.queue.jobs.services import job_claim_next, job_commit_checkpoint, job_metrics, job_progress, job_submit
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import User
from control.tenants.audit.models import AuditEvent
from tests.control.factories import make_job, make_organization
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.workflows.batches.helpers import make_batch

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Client:
    return operator_client()


@pytest.fixture
def claim() -> Claim:
    """The claim of a training job that a worker holds."""
    job_submit(organization=make_organization(), kind="training", params={})
    claim = job_claim_next(worker="one")
    assert claim is not None
    return claim


def test_loss_and_acceptance_are_drawn_from_the_checkpoints(operator: Client, claim: Claim) -> None:
    for step, loss in ((10, 2.0), (20, 1.5), (30, 1.25)):
        job_metrics(claim=claim, metrics={"loss": loss, "acceptance_length": 4 - loss})
        job_commit_checkpoint(claim=claim, storage_prefix="c", step=step)

    text = page(operator, change_path("jobs_job", claim.job_id))

    assert 'aria-label="loss: from 1.25 to 2, latest value 1.25"' in text
    assert 'aria-label="acceptance length: from 2 to 2.75, latest value 2.75"' in text
    # Pixels (x, y) of the three losses, where y = 6 is the top of the chart and 114 the bottom.
    assert 'points="6.0,6.0 160.0,78.0 314.0,114.0"' in text


def test_pages_of_a_job_and_a_batch_say_that_they_are_held_until_older_workers_have_ended(operator: Client) -> None:
    batch = make_batch()
    Worker.objects.create(pk="old", role="jobs", started_at=Now(), heartbeat_at=Now())
    held = job_submit(organization=make_organization(), kind="batch", params={}, hardware="cuda")
    Job.objects.filter(pk=batch.job_id).update(min_protocol=held.min_protocol, not_before=held.not_before)

    assert HELD["message"] in page(operator, change_path("jobs_job", held.pk))
    assert f"Waiting for a worker. {HELD['message']}" in page(operator, change_path("batches_batch", batch.pk))


def test_a_step_with_two_checkpoints_is_drawn_once(operator: Client, claim: Claim) -> None:
    for loss in (2.0, 1.0):
        job_metrics(claim=claim, metrics={"loss": loss})
        job_commit_checkpoint(claim=claim, storage_prefix="c", step=10)

    assert 'points="160.0,60.0"' in page(operator, change_path("jobs_job", claim.job_id))


def test_the_end_of_the_latest_attempts_log_is_shown(operator: Client, claim: Claim) -> None:
    path = get_config().data_dir / "logs" / "jobs" / f"{claim.job_id}.{claim.fence}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    # The page shows fewer than 9000 bytes of the log.
    path.write_text("begin" + "x" * 9000 + "<the end>")

    text = page(operator, change_path("jobs_job", claim.job_id))

    assert "&lt;the end&gt;" in text
    assert "begin" + "x" not in text


def test_a_page_is_sent_again_only_if_it_has_changed(operator: Client, claim: Claim) -> None:
    path = change_path("jobs_job", claim.job_id)
    etag = operator.get(path).headers["ETag"]
    with CaptureQueriesContext(connection) as queries:
        unchanged = operator.get(path, headers={"If-None-Match": etag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    assert len(queries) <= 5

    job_progress(claim=claim, done=1, total=2, unit="steps")

    assert operator.get(path, headers={"If-None-Match": etag}).status_code == 200


def test_a_known_etag_reveals_nothing_without_the_permission(operator: Client, claim: Claim) -> None:
    path = change_path("jobs_job", claim.job_id)
    etag = operator.get(path).headers["ETag"]
    onlooker = Client()
    onlooker.force_login(User.objects.create_user("onlooker", is_staff=True))

    assert onlooker.get(path, headers={"If-None-Match": etag}).status_code == 403


def test_a_cancellation_is_audited_with_the_operators_name_and_hides_the_button(operator: Client, claim: Claim) -> None:
    press(operator, "jobs_job", claim.job_id, "cancel")

    event = AuditEvent.objects.get()
    assert (event.action, event.object_id, event.actor_type) == ("job.cancel", claim.job_id, "user")
    assert event.actor_id == "operator"
    assert not re.search(r'href="[^"]*/cancel/?"', page(operator, change_path("jobs_job", claim.job_id)))


def test_the_number_of_queries_of_the_job_list_does_not_depend_on_the_number_of_jobs(operator: Client) -> None:
    organizations = [make_organization() for _ in range(20)]
    Job.objects.bulk_create(Job(organization=organizations[i % 20], kind="batch") for i in range(300))
    make_job()

    with CaptureQueriesContext(connection) as queries:
        page(operator, reverse("admin:jobs_job_changelist"))

    assert len(queries) <= 15
