"""Whose turn it is: worker time is shared evenly between the organizations that want it.

Among organizations with a due job, the one with the fewest running jobs comes next, and of these the one that has used
the least worker time. Who had nothing to do comes back level with the one that has used least: time left unused is not
saved up. Within an organization the higher priority comes first, then the older job.

With one worker and N organizations at work, each gets 1/N of the time, whatever its jobs take; it waits at most for one
job of each of the others more.
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
# A pipeline that has begun goes on before another one begins: its answers are worth nothing without their end.
PRIORITIES = {Job.Kind.MODEL_CHECK: 0, Job.Kind.BATCH: 0, Job.Kind.TRAINING: 1, Job.Kind.EVALUATION: 2}


@dataclass(frozen=True, slots=True)
class Turn:
    job: Job
    limit: int | None  # of its organization's running jobs; None: there is none, as for what is only to be ended


def next_job() -> Turn | None:
    """The job to claim next; cancelled ones before all others: they cost seconds, and somebody waits.

    Call it in the transaction of the claim. On PostgreSQL the row is locked, and those that others have locked are
    passed over, so that workers who look at the same time do not all reach for the same job.
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
    # One after the other: each is the first row of an index, both in one query would be a sort of all that wait.
    job = own.filter(is_abandoned()).first() or own.filter(is_waiting()).first()
    return None if job is None else Turn(job, limit)


def _turns() -> QuerySet[Organization, tuple[str, int | None]]:
    """Organizations that want a worker and may have one more, in the order of their turns, with their limits."""
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
    """Call it in the transaction of the claim: until its end nobody else claims for the organization."""
    organization_lock(organization_id)
    return Job.objects.filter(is_running(), organization_id=organization_id).count() < limit


def share_join(organization_id: str) -> None:
    """Before an organization's job is queued. Effects: one that had nothing to do comes level with the others."""
    if Job.objects.filter(organization_id=organization_id, status__in=OPEN).exists():
        return
    wanting = Share.objects.filter(Exists(Job.objects.filter(organization=OuterRef("pk"), status__in=OPEN)))
    with across_tenants(Across.CLAIM):
        level = wanting.aggregate(least=Min("used_seconds"))["least"] or 0.0
    Share.objects.get_or_create(pk=organization_id)
    Share.objects.filter(pk=organization_id).update(used_seconds=Greatest("used_seconds", Value(level)))


def share_charge(organization_id: str, *, since: dt.datetime | None, until: dt.datetime | None) -> None:
    """An attempt has ended, or its lease has."""
    if since is None or until is None or until <= since:
        return
    Share.objects.get_or_create(pk=organization_id)
    seconds = (until - since).total_seconds()
    Share.objects.filter(pk=organization_id).update(used_seconds=F("used_seconds") + seconds)
