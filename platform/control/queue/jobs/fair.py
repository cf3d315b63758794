"""Chooses the next job so that worker time is shared evenly between the organizations that have due jobs.

The next job is one of the organization with the fewest running jobs and, among equals, with the least worker time used.
An organization that had no jobs starts again with the least time used by any other: unused time is not saved up. Within
an organization the job with the highest priority comes first, then the oldest.

With one worker and N busy organizations each gets 1/N of the time, however long its jobs take, and waits at most for
one job of each of the others.
"""

import datetime as dt
from dataclasses import dataclass

from django.db.models import Count, Exists, F, IntegerField, Min, OuterRef, Q, QuerySet, Subquery, Value
from django.db.models.functions import Coalesce, Greatest

from control.core.settings.config import get_config
from control.queue.jobs.models import Job, Share
from control.queue.jobs.selectors import is_abandoned, is_running, is_waiting, jobs_to_cancel
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits
from control.tenants.quotas.quota import organization_lock
from control.tenants.row_security.scope import Across, across_tenants

OPEN = (Job.Status.QUEUED, Job.Status.RUNNING)
# Later stages come first, so that a pipeline is finished before another one starts.
PRIORITIES = {Job.Kind.MODEL_CHECK: 0, Job.Kind.BATCH: 0, Job.Kind.TRAINING: 1, Job.Kind.EVALUATION: 2}


@dataclass(frozen=True, slots=True)
class Turn:
    job: Job
    limit: int | None  # on its organization's running jobs; None: no limit, or the job is to be cancelled


def next_job() -> Turn | None:
    """Returns the job to claim next. Jobs to cancel come first: they take seconds, and a customer waits for them.

    Call this in the transaction of the claim. On PostgreSQL it locks the row and skips rows that others have locked, so
    that concurrent workers choose different jobs.
    """
    cancelled = jobs_to_cancel().select_for_update(skip_locked=True).first()
    if cancelled is not None:
        return Turn(cancelled, None)
    turn = _turns().first()
    if turn is None:
        return None
    organization_id, limit = turn
    own = Job.objects.filter(organization_id=organization_id).select_for_update(skip_locked=True)
    own = own.order_by("-priority", "pk")
    # Two queries, each of which reads the first row of an index: one query for both would sort all waiting jobs.
    job = own.filter(is_abandoned()).first() or own.filter(is_waiting()).first()
    return None if job is None else Turn(job, limit)


def _turns() -> QuerySet[Organization, tuple[str, int | None]]:
    """Returns ids and limits of the organizations that have a due job and may run one more, in order of their turn."""
    own = Job.objects.filter(organization=OuterRef("pk")).order_by()
    running = own.filter(is_running()).values("organization").annotate(n=Count("pk")).values("n")
    limit = Limits.objects.filter(pk=OuterRef("pk")).values("running_jobs")
    used = Share.objects.filter(pk=OuterRef("pk")).values("used_seconds")
    wanting = Exists(own.filter(is_waiting())) | Exists(own.filter(is_abandoned()))
    candidates = Organization.objects.filter(wanting).annotate(
        num_running=Coalesce(Subquery(running), 0),
        limit=Coalesce(Subquery(limit), Value(get_config().max_running_jobs, IntegerField())),
        used_seconds=Coalesce(Subquery(used), 0.0),
    )
    may = Q(limit=None) | Q(num_running__lt=F("limit"))
    return candidates.filter(may).order_by("num_running", "used_seconds", "pk").values_list("pk", "limit")


def may_run_another(organization_id: str, limit: int) -> bool:
    """Call this in the transaction of the claim: until it ends, no other worker claims a job of the organization."""
    organization_lock(organization_id)
    return Job.objects.filter(is_running(), organization_id=organization_id).count() < limit


def share_join(organization_id: str) -> None:
    """Call this before a job is queued. If the organization had no open jobs, its share is raised to the least one."""
    if Job.objects.filter(organization_id=organization_id, status__in=OPEN).exists():
        return
    wanting = Share.objects.filter(Exists(Job.objects.filter(organization=OuterRef("pk"), status__in=OPEN)))
    with across_tenants(Across.CLAIM):
        level = wanting.aggregate(least=Min("used_seconds"))["least"] or 0.0
    Share.objects.get_or_create(pk=organization_id)
    Share.objects.filter(pk=organization_id).update(used_seconds=Greatest("used_seconds", Value(level)))


def share_charge(organization_id: str, *, since: dt.datetime | None, until: dt.datetime | None) -> None:
    """Adds the worker time of an attempt that has ended, or whose lease has."""
    if since is None or until is None or until <= since:
        return
    Share.objects.get_or_create(pk=organization_id)
    seconds = (until - since).total_seconds()
    Share.objects.filter(pk=organization_id).update(used_seconds=F("used_seconds") + seconds)
