"""Workers of two releases run side by side, and each claims only jobs that it understands (promise U2)."""

from datetime import timedelta

import pytest
from django.db.models import Q
from django.db.models.functions import Now

from control.queue.devices.blocked import waiting_described
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.protocol import LABELS_AND_HARDWARE, PROTOCOL, jobs_unhold
from control.queue.jobs.services import (
    job_cancel,
    job_claim,
    job_claim_next,
    job_pause_on_request,
    job_release,
    job_resume,
    job_submit,
    worker_beat,
)
from control.workflows.fine_tuning.services import PAUSE_REASON
from tests.control.factories import make_job, make_organization
from tests.control.queue.jobs.helpers import claim, submit

pytestmark = pytest.mark.django_db


def add_unversioned_worker() -> Worker:
    """Adds a worker as a release without protocols writes it: the column has its default."""
    return Worker.objects.create(pk="old", role="jobs", started_at=Now(), heartbeat_at=Now())


def submit_labels() -> Job:
    organization = make_organization()
    return job_submit(organization=organization, kind="training", params={}, min_protocol=LABELS_AND_HARDWARE)


def jobs_seen_by_an_unversioned_worker() -> set[str]:
    """Returns the jobs that match the condition by which releases without protocols claim."""
    waits = Q(status="queued") & (Q(not_before=None) | Q(not_before__lte=Now()))
    return set(Job.objects.filter(waits | Q(status="running", lease_until__lt=Now())).values_list("pk", flat=True))


def test_a_job_that_old_workers_would_fail_is_held_until_the_last_of_them_has_ended() -> None:
    old = add_unversioned_worker()
    held, other = submit_labels(), submit()

    assert jobs_seen_by_an_unversioned_worker() == {other.pk}
    assert jobs_unhold() == 0
    waiting_described([held])
    assert held.blocked is not None
    assert held.blocked["code"] == "workers_upgrading"
    old.delete()
    assert jobs_unhold() == 1

    assert jobs_seen_by_an_unversioned_worker() == {held.pk, other.pk}
    assert claim(held).job_id == held.pk


def test_old_workers_that_are_dead_or_supervise_endpoints_hold_no_job() -> None:
    old = add_unversioned_worker()
    Worker.objects.filter(pk=old.pk).update(heartbeat_at=Now() - timedelta(minutes=2))
    Worker.objects.create(pk="endpoints", role="deployments", started_at=Now(), heartbeat_at=Now())
    worker_beat(worker="new", role="jobs")

    assert submit_labels().not_before is None


def test_a_job_that_asks_for_hardware_is_held_because_old_workers_would_ignore_the_wish() -> None:
    add_unversioned_worker()

    job_submit(organization=make_organization(), kind="batch", params={}, hardware="cuda")

    assert jobs_seen_by_an_unversioned_worker() == set()


@pytest.mark.parametrize("how", ["release", "resume"])
def test_a_job_that_is_queued_again_while_an_old_worker_is_alive_is_held(how: str) -> None:
    job = submit_labels()
    current = claim(job)
    add_unversioned_worker()

    if how == "release":
        job_release(claim=current)
    else:
        assert job_pause_on_request(job=job, why=PAUSE_REASON)
        assert job_resume(job=job, code=str(PAUSE_REASON["code"]))

    assert Job.objects.get(pk=job.pk).status == Job.Status.QUEUED
    assert jobs_seen_by_an_unversioned_worker() == set()


def test_a_worker_neither_claims_nor_ends_a_job_of_the_next_release() -> None:
    newer = make_job(min_protocol=PROTOCOL + 1)
    cancelled = make_job(min_protocol=PROTOCOL + 1)
    job_cancel(job=cancelled)

    assert job_claim_next(worker="worker") is None
    assert job_claim(job_id=newer.pk, worker="worker") is None
    assert job_claim(job_id=cancelled.pk, worker="worker") is None
