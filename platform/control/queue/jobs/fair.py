"""Chooses the next job so that worker time is shared evenly between the organizations that have due jobs.

The next job is from the organization with the fewest running jobs and, among equals, with the least worker time used.
When an organization without open jobs (queued or running) submits a job, its used time is raised to a lower bound. The
bound is the least used time of the organizations with open jobs or, if there are none, the most used time of all. An
organization therefore cannot save up unused time. Time that it used while no other organization had jobs does not count
against it. Within an organization, jobs are ordered by priority, then by age.

With one worker and N busy organizations, each organization gets 1/N of the time, however long its jobs take. It waits
for at most one job of each other organization.
"""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, Exists, F, IntegerField, Max, Min, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Greatest

from control.core.settings.config import get_config
from control.queue.jobs.models import Job, Share
from control.queue.jobs.protocol import is_understood
from control.queue.jobs.selectors import is_abandoned, is_running, is_waiting, jobs_to_cancel
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits
from control.tenants.quotas.quota import organization_lock
from control.tenants.row_security.scope import Across, across_tenants

OPEN = (Job.Status.QUEUED, Job.Status.RUNNING)
# Later stages of pipelines have a higher priority, so that a pipeline is finished before another one starts.
PRIORITIES = {Job.Kind.MODEL_CHECK: 0, Job.Kind.BATCH: 0, Job.Kind.TRAINING: 1, Job.Kind.EVALUATION: 2}
# The priorities that a customer may choose. Their values outweigh the priorities of the kinds.
LEVELS: Mapping[str, int] = {"low": -10, "normal": 0, "high": 10}
NORMAL = "normal"
ORDER_IN_ORGANIZATION = ("-priority", "pk")


@dataclass(frozen=True, slots=True)
class NextJob:
    job: Job
    limit: int | None  # the organization's limit on running jobs; None: no limit, or the job is to be cancelled


def next_job(fits: Q) -> NextJob | None:
    """Returns the job to claim next. Jobs to cancel come first: they take seconds, and a customer waits for them.

    Args: fits: matches the jobs that the worker's free devices can run. A job to cancel needs no device.

    Call this in the transaction of the claim. On PostgreSQL it locks the row and skips rows that others have locked, so
    that concurrent workers choose different jobs.
    """
    fits &= is_understood()
    cancelled = jobs_to_cancel().filter(is_understood()).select_for_update(skip_locked=True).first()
    if cancelled is not None:
        return NextJob(cancelled, None)
    may_run = organizations_with_due_jobs(fits).filter(Q(limit=None) | Q(num_running__lt=F("limit")))
    turns = may_run.order_by("num_running", "used_seconds", "pk")
    for organization_id, limit in turns.values_list("pk", "limit"):
        jobs = Job.objects.filter(fits, organization_id=organization_id).select_for_update(skip_locked=True)
        jobs = jobs.order_by(*ORDER_IN_ORGANIZATION)
        # Two queries, each of which reads the first row of an index: one query for both would sort all waiting jobs.
        job = jobs.filter(is_abandoned()).first() or jobs.filter(is_waiting()).first()
        if job is not None:
            return NextJob(job, limit)
        # Other workers have locked all due jobs of this organization, so the next organization is tried.
    return None


def priority_of(kind: Job.Kind, level: str) -> int:
    """Returns the value of `Job.priority`. Args: level: a name in `LEVELS`."""
    return PRIORITIES[kind] + LEVELS[level]


def level_of(job: Job) -> str:
    """Returns the name in `LEVELS` of the priority that the customer chose for the job."""
    chosen = job.priority - PRIORITIES[Job.Kind(job.kind)]
    return next((name for name, value in LEVELS.items() if value == chosen), NORMAL)


def organizations_with_due_jobs(fits: Q) -> QuerySet[Any]:
    """Returns the organizations that have a due job which matches `fits`.

    They are annotated with `num_running`, `used_seconds` and `limit`, their limit on running jobs or None.
    """
    jobs = Job.objects.filter(organization=OuterRef("pk")).order_by()
    running = jobs.filter(is_running()).values("organization").annotate(n=Count("pk")).values("n")
    limit = Limits.objects.filter(pk=OuterRef("pk")).values("running_jobs")
    used = Share.objects.filter(pk=OuterRef("pk")).values("used_seconds")
    has_due_job = Exists(jobs.filter(fits, is_waiting())) | Exists(jobs.filter(fits, is_abandoned()))
    return Organization.objects.filter(has_due_job).annotate(
        num_running=Coalesce(Subquery(running), 0),
        limit=Coalesce(Subquery(limit), Value(get_config().max_running_jobs, IntegerField())),
        used_seconds=Coalesce(Subquery(used), 0.0),
    )


def may_run_another(organization_id: str, limit: int) -> bool:
    """Returns whether the organization runs fewer jobs than `limit`.

    Call this in the transaction of the claim: until it ends, no other worker claims a job of the organization.
    """
    organization_lock(organization_id)
    return Job.objects.filter(is_running(), organization_id=organization_id).count() < limit


def share_join(organization_id: str) -> None:
    """Raises the used time of an organization without open jobs (see the module). Call this before a job is queued."""
    if Job.objects.filter(organization_id=organization_id, status__in=OPEN).exists():
        return
    active = Share.objects.filter(Exists(Job.objects.filter(organization=OuterRef("pk"), status__in=OPEN)))
    with across_tenants(Across.CLAIM):
        used = active.aggregate(least=Min("used_seconds"))["least"]
        if used is None:
            used = Share.objects.aggregate(most=Max("used_seconds"))["most"] or 0.0
    Share.objects.get_or_create(pk=organization_id)
    Share.objects.filter(pk=organization_id).update(used_seconds=Greatest("used_seconds", Value(used)))


def share_charge(organization_id: str, *, since: dt.datetime | None, until: dt.datetime | None) -> None:
    """Adds the worker time of an attempt that has ended or lost its lease."""
    if since is None or until is None or until <= since:
        return
    Share.objects.get_or_create(pk=organization_id)
    seconds = (until - since).total_seconds()
    Share.objects.filter(pk=organization_id).update(used_seconds=F("used_seconds") + seconds)
