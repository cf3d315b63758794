"""Tells how many waiting jobs workers claim before a job.

The positions follow from the rule of `fair` and the state of the moment: they are those in which the waiting jobs are
claimed if no job ends and none is added. A claim then only raises the number of running jobs of an organization, so the
jobs of an organization with `r` running jobs are claimed at its levels r, r + 1, r + 2, and so on; a lower level comes
first, and on the same level the organization with the least used worker time. A job at level 5 is therefore preceded by
the jobs of all organizations at the levels below 5, and by one of each organization with less used time.

    organization    running    waiting jobs at levels    used time
    A               0          0  1  2                   10 s
    B               1             1  2  3                20 s          order: A0 A1 B1 A2 B2 B3

Two queries serve any number of jobs of an organization. They read its waiting jobs, whose number its quota limits, and
count those of the others.
"""

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Count, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from control.queue.jobs.fair import ORDER_IN_ORGANIZATION, organizations_with_due_jobs
from control.queue.jobs.models import Job
from control.queue.jobs.selectors import is_abandoned, is_waiting
from control.tenants.row_security.scope import Across, across_tenants

# Without the jobs that are to be cancelled: workers claim these before all others and need only seconds for them.
_WAITING = is_waiting() & Q(cancel_requested_at=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backlog:
    """The due jobs of an organization, and what decides about its turn."""

    turn: tuple[float, str]  # used worker time and id: the smaller one comes first on the same level
    num_running: int
    num_abandoned: int  # jobs that lost their worker; they are claimed before the waiting ones
    num_claims: int  # how many due jobs its limit on running jobs allows, if none ends

    def num_before(self, level: int, turn: tuple[float, str]) -> int:
        """The number of its jobs that come before the job of another organization at `level`."""
        return max(0, min(level - self.num_running + (self.turn < turn), self.num_claims))


def queue_positions_set(jobs: Collection[Job]) -> None:
    """Sets `queue_position` of jobs of one organization: 1 for the job that is claimed next.

    It stays None for jobs that are not waiting, are in back-off or are to be cancelled.
    """
    waiting = [job for job in jobs if job.status == Job.Status.QUEUED and job.cancel_requested_at is None]
    if not waiting:
        return
    organization_id = waiting[0].organization_id
    assert all(job.organization_id == organization_id for job in waiting), "positions are those of one organization"
    with across_tenants(Across.QUEUE):
        ranks = _ranks(organization_id, waiting)
        backlogs = _backlogs()
    own = backlogs.pop(organization_id, None)
    if own is None:  # the last waiting job was claimed between the two queries
        return
    for job in waiting:
        if job.pk in ranks:
            before = own.num_abandoned + ranks[job.pk] - 1
            level = own.num_running + before
            job.queue_position = 1 + before + sum(other.num_before(level, own.turn) for other in backlogs.values())


def _ranks(organization_id: str, jobs: Collection[Job]) -> dict[str, int]:
    """Returns the ranks of waiting jobs among those of their organization, from 1."""
    wanted = {job.pk for job in jobs}
    waiting = Job.objects.filter(_WAITING, organization_id=organization_id).order_by(*ORDER_IN_ORGANIZATION)
    numbered = enumerate(waiting.values_list("pk", flat=True).iterator(), start=1)
    return {pk: rank for rank, pk in numbered if pk in wanted}


def _backlogs() -> dict[str, _Backlog]:
    """Returns the backlogs of the organizations that have due jobs."""
    jobs = Job.objects.filter(organization=OuterRef("pk")).order_by()
    num_waiting, num_abandoned = (
        Coalesce(Subquery(jobs.filter(condition).values("organization").annotate(n=Count("pk")).values("n")), 0)
        for condition in (_WAITING, is_abandoned())
    )
    counted = organizations_with_due_jobs(Q()).annotate(num_waiting=num_waiting, num_abandoned=num_abandoned)
    names = ("pk", "limit", "used_seconds", "num_running", "num_waiting", "num_abandoned")
    backlogs = {}
    for pk, limit, used_seconds, running, waiting, abandoned in counted.values_list(*names):
        due = waiting + abandoned
        backlogs[pk] = _Backlog(
            turn=(used_seconds, pk),
            num_running=running,
            num_abandoned=abandoned,
            num_claims=due if limit is None else max(0, min(due, limit - running)),
        )
    return backlogs
