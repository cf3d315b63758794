"""Creates jobs and changes their state, without a worker."""

from datetime import timedelta

from django.db.models.functions import Now
from django.utils import timezone

from control.queue.jobs.failures import Failure
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.services import job_claim, job_submit
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import Organization
from tests.control.factories import make_organization
from workers.contracts import FailureClass

INFRA = Failure(failure_class=FailureClass.INFRA, code="worker_crashed", message="It died.")


def submit(*, kind: str = Job.Kind.BATCH, organization: Organization | None = None) -> Job:
    return job_submit(organization=organization or make_organization(), kind=kind, params={})


def claim(job: Job, worker: str = "worker") -> Claim:
    result = job_claim(job_id=job.pk, worker=worker)
    assert result is not None
    return result


def expire_lease(job: Job) -> None:
    Job.objects.filter(pk=job.pk, status=Job.Status.RUNNING).update(lease_until=Now() - timedelta(seconds=1))


def end_backoff(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(not_before=timezone.now() - timedelta(seconds=1))


def add_shards(job: Job, *sizes: int) -> None:
    """Creates shards with these numbers of rows."""
    first = 0
    for number, size in enumerate(sizes):
        JobShard.objects.create(job=job, shard_no=number, row_from=first, row_to=first + size)
        first += size


def snapshot(job: Job) -> dict[str, object]:
    """Returns all data that a write with an outdated claim could change."""
    return {
        **Job.objects.filter(pk=job.pk).values().get(),
        "shards": list(JobShard.objects.filter(job=job).order_by("pk").values()),
        "events": list(job.events.order_by("seq").values("seq", "type")),
    }
