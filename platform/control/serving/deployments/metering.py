"""Records the device time of endpoints in the ledger: every minute while a process runs, and when it has ended.

The time in which an engine sleeps is not recorded. Recording continues when the supervisor sees that the engine is
awake again, some seconds after a gateway has woken it.

`metered_until` is the time up to which the ledger contains the device time of the replica's current process; null:
there is no process, or it sleeps. The transaction that adds a line to the ledger also moves `metered_until`, by a
compare-and-swap, so that two supervisors never record the same period twice. If supervisor and process die together,
the time since the last line is lost, at most about a minute.
"""

import datetime as dt

from django.db import transaction
from django.utils import timezone

from control.billing.ledger.models import Subject
from control.billing.ledger.services import device_kind
from control.billing.usage.device_time import device_time_add
from control.billing.usage.services import caller_of_job
from control.serving.deployments.models import Replica

INTERVAL = dt.timedelta(seconds=60)


def endpoint_meter(*, replica: Replica) -> None:
    """Records the device time of a replica whose process is alive, if a minute has passed since the last record.

    The supervisor calls this at every tick.
    """
    if replica.state == Replica.State.SLEEPING:
        return
    now = timezone.now()
    if replica.metered_until is None:  # an earlier release without metering launched the process
        unmetered = Replica.objects.filter(pk=replica.pk, pid=replica.pid, metered_until=None)
        unmetered.update(metered_until=now)
    elif now - replica.metered_until >= INTERVAL:
        _record(replica, since=replica.metered_until, until=now, metered_until=now)


def endpoint_meter_end(*, replica: Replica) -> None:
    """Records the rest of a process's device time. Call this in the transaction that records its end or its sleep.

    If no supervisor was running when the process ended, the time of the end is unknown. At most one interval after the
    last line is then charged.
    """
    replica.refresh_from_db(fields=["metered_until"])
    since = replica.metered_until
    if since is not None:
        _record(replica, since=since, until=min(timezone.now(), since + INTERVAL), metered_until=None)


def _record(replica: Replica, *, since: dt.datetime, until: dt.datetime, metered_until: dt.datetime | None) -> None:
    deployment = replica.deployment
    with transaction.atomic():
        current = Replica.objects.filter(pk=replica.pk, metered_until=since)
        if not current.update(metered_until=metered_until):
            return  # another supervisor has recorded the period
        device_time_add(
            caller=caller_of_job(job_id=deployment.pk, organization_id=deployment.organization_id),
            subject=Subject.ENDPOINT_TIME,
            object_id=deployment.pk,
            sequence=f"{replica.number}/{since.isoformat()}",
            device_kind=replica.device_kind or device_kind(),
            hour_nanousd=replica.hour_nanousd,
            since=since,
            until=until,
        )
