"""Computes for how much of the last hour and of the last day each device was held.

When a lease ends, its device and times are stored as a `DeviceHold`. The held share of a period is the time of the
holds and of the present leases within the period, divided by the length of the period.
"""

import datetime as dt
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, QuerySet, Sum, Value
from django.db.models.functions import Greatest

from control.queue.devices.models import Device, DeviceHold, DeviceLease, EndpointLease
from control.queue.devices.selectors import leases_valid

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)
KEPT = DAY + HOUR


def job_lease_end(*, job_id: str, fence: int, until: dt.datetime) -> None:
    """Ends the lease of an attempt, if it has one. Call this in the transaction that records the end of the attempt."""
    for lease in DeviceLease.objects.filter(job_id=job_id, fence=fence):
        lease.delete()
        hold_add(lease.device_id, since=lease.since, until=until)


def hold_add(device_id: int, *, since: dt.datetime, until: dt.datetime) -> None:
    """Records a hold, and deletes the device's older holds that no share includes any more."""
    DeviceHold.objects.filter(device=device_id, until__lt=until - KEPT).delete()
    DeviceHold.objects.create(device_id=device_id, since=since, until=max(since, until))


def held_shares(devices: Collection[Device], *, now: dt.datetime, period: dt.timedelta) -> Mapping[int, float]:
    """Returns, by device id, the share of the period before `now` in which the device was held.

    Devices that were not held are left out. Several jobs at once may hold a device whose memory is not stated; its
    share is limited to 1.
    """
    start, seconds = now - period, dict[int, float]()
    end = Value(now, DateTimeField())
    ended = DeviceHold.objects.filter(until__gt=start)
    for rows, until in ((ended, F("until")), (leases_valid(), end), (EndpointLease.objects.all(), end)):
        for device_id, held in _held(rows.filter(device__in=devices), start, until):
            seconds[device_id] = seconds.get(device_id, 0.0) + held.total_seconds()
    return {device_id: min(1.0, held / period.total_seconds()) for device_id, held in seconds.items()}


def _held(rows: QuerySet[Any], start: dt.datetime, until: object) -> Iterable[tuple[int, dt.timedelta]]:
    since = Greatest(F("since"), Value(start, DateTimeField()), output_field=DateTimeField())
    span = ExpressionWrapper(Greatest(until, since, output_field=DateTimeField()) - since, output_field=DurationField())
    by_device = rows.order_by().annotate(span=span).values("device").annotate(held=Sum("span"))
    return ((row["device"], row["held"]) for row in by_device)
