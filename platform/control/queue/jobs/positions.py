"""Tells how many waiting jobs workers claim before a job.

The positions follow from the rule of `fair` and the present state, under the assumption that no job ends and no job is
added. Each claim then adds one running job to an organization. The level of a waiting job is the number of running jobs
that its organization has when the job is claimed: the waiting jobs of an organization with `r` running jobs have the
levels r, r + 1, r + 2, and so on. Jobs with a lower level are claimed first. On the same level, the organization with
the least used worker time comes first.

    organization    running    waiting jobs at levels    used time
    A               0          0  1  2                   10 s
    B               1             1  2  3                20 s          order: A0 A1 B1 A2 B2 B3

Two queries serve any number of jobs of one organization. They read its waiting jobs, whose number its quota limits, and
count the waiting jobs of the other organizations.
"""

from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Count, OuterRef, Q, Subquery
from django.db.models.functions import Coalesce

from control.queue.jobs.fair import ORDER_IN_ORGANIZATION, organizations_with_due_jobs
from control.queue.jobs.models import Job
from control.queue.jobs.selectors import is_abandoned, is_waiting
from control.tenants.row_security.scope import Across, across_tenants

# Jobs to cancel are left out, because workers claim them before all others and need only seconds for them.
_WAITING = is_waiting() & Q(cancel_requested_at=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Backlog:
    """The numbers of an organization's due jobs, and the values that decide about its turn."""

    turn: tuple[float, str]  # used worker time and id: the smaller one comes first on the same level
    num_running: int
    num_abandoned: int  # jobs that lost their worker; they are claimed before the waiting ones
    num_claims: int  # number of due jobs that its limit on running jobs allows to be claimed, if no job ends

    def num_before(self, level: int, turn: tuple[float, str]) -> int:
        """Returns how many of this organization's jobs come before another organization's job at `level`."""
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
    """Returns the rank, from 1, of each job among the waiting jobs of its organization."""
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
