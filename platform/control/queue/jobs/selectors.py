"""Selectors for jobs, shards and workers. Selectors for customers take the organization as first argument."""

import datetime as dt

from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from control.core.api.errors import ApiError
from control.queue.jobs.models import Job, JobEvent, JobShard, Worker
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible

_LONG_AGO = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SILENT_SECONDS = 30.0  # a worker that sends no heartbeat for so long counts as dead
FORGOTTEN_SECONDS = 24 * 3600.0  # rows of workers and devices without a heartbeat for so long are deleted


def jobs_list(organization: Organization) -> QuerySet[Job]:
    return Job.objects.filter(visible(organization))


def job_get(organization: Organization, job_id: str) -> Job:
    """Raises: ApiError: 404, also for another organization's job."""
    job = jobs_list(organization).filter(pk=job_id).first()
    if job is None:
        raise ApiError(404, f"No job with id {job_id!r}.", "job_not_found", "job_id")
    return job


def job_events(job: Job) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(job=job).order_by("seq")


def is_waiting() -> Q:
    """Matches queued jobs that are not in back-off."""
    return Q(status=Job.Status.QUEUED) & (Q(not_before=None) | Q(not_before__lte=Now()))


def is_running() -> Q:
    """Matches jobs with a valid lease."""
    return Q(status=Job.Status.RUNNING, lease_until__gte=Now())


def is_abandoned() -> Q:
    """Matches running jobs whose lease has expired."""
    return Q(status=Job.Status.RUNNING, lease_until__lt=Now())


def is_due() -> Q:
    """Matches jobs that can be claimed now."""
    return is_waiting() | is_abandoned()


def jobs_due() -> QuerySet[Job]:
    """Returns due jobs, oldest first. `fair` decides which of them is claimed next."""
    return Job.objects.filter(is_due()).order_by("pk")


def jobs_to_cancel() -> QuerySet[Job]:
    """Returns due jobs whose cancellation was requested: a worker only has to assemble their partial results."""
    # Compares with a time, because for IS NOT NULL, SQLite reads the index entries of all queued jobs.
    return Job.objects.filter(is_due(), cancel_requested_at__gt=_LONG_AGO).order_by("cancel_requested_at", "pk")


def workers_alive() -> QuerySet[Worker]:
    return Worker.objects.filter(heartbeat_at__gte=timezone.now() - dt.timedelta(seconds=SILENT_SECONDS))


def shards_uncommitted(job_id: str) -> QuerySet[JobShard]:
    """Returns shards without a committed result, in row order."""
    return JobShard.objects.filter(job_id=job_id, storage_key="").order_by("row_from")


def num_rows_committed(job_id: str) -> int:
    done = JobShard.objects.filter(job_id=job_id).exclude(storage_key="")
    return sum(shard.row_to - shard.row_from for shard in done.only("row_from", "row_to"))
