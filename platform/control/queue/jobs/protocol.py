"""Which jobs the workers of a release understand. Releases run side by side during a rolling upgrade.

A job states the protocol that its worker needs (`Job.min_protocol`). A worker claims, ends and tidies only jobs that
need its own protocol or an older one. Increase `PROTOCOL` when a job can have params that the previous release would
misread, and state the new number for these jobs.

Workers of releases before this rule have protocol 0 and claim every due job. A job that needs a newer protocol is
therefore held while one of them is alive: its `not_before` is `HELD_UNTIL`, which also these workers respect.
`jobs_unhold`, a chore that only newer workers know, lets the job start when the last of them has ended.
"""

import datetime as dt

from django.db.models import Q

from control.queue.jobs.models import Job
from control.queue.jobs.selectors import workers_alive
from control.queue.jobs.wake import wake

PROTOCOL = 1
# The worker claims by `min_protocol`. It can train adapters on labels, read answers from files, and obey `hardware`.
LABELS_AND_HARDWARE = 1

HELD_UNTIL = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
HELD = {
    "code": "workers_upgrading",
    "message": "Workers of an older release, which cannot run this job, are still running. It starts when they have "
    "ended.",
}
UNHOLD_LIMIT = 1000


def is_understood() -> Q:
    """Matches the jobs that a worker of this release can run."""
    return Q(min_protocol__lte=PROTOCOL)


def is_held() -> Q:
    """Matches queued jobs that wait until no worker without a protocol is alive."""
    return Q(status=Job.Status.QUEUED, min_protocol__gt=0, not_before=HELD_UNTIL)


def held_until(min_protocol: int) -> dt.datetime | None:
    """Returns `HELD_UNTIL` if a worker that is alive might wrongly claim such a job, otherwise None."""
    return HELD_UNTIL if min_protocol > 0 and _has_unversioned_worker() else None


def jobs_unhold() -> int:
    """Makes held jobs due if no worker without a protocol is alive any more. Returns: the number of these jobs."""
    ids = list(Job.objects.filter(is_held()).values_list("pk", flat=True)[:UNHOLD_LIMIT])
    if not ids or _has_unversioned_worker():
        return 0
    freed = Job.objects.filter(is_held(), pk__in=ids).update(not_before=None)
    wake(ids[0])  # the chore that repeats wake-ups sends the others
    return freed


def _has_unversioned_worker() -> bool:
    return workers_alive().filter(role="jobs", protocol=0).exists()
