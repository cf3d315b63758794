"""Registers the devices of this process's worker."""

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.core.settings.config import get_config
from control.queue.devices.models import Device
from control.queue.devices.own import own_devices
from control.queue.jobs.selectors import FORGOTTEN_SECONDS, SILENT_SECONDS


def devices_renew() -> None:
    """Stores the devices of this worker, or renews their rows. Several workers may renew the same row."""
    config = get_config()
    seconds = max(SILENT_SECONDS, 2 * config.reconcile_seconds)
    devices = own_devices(config)
    for device in devices:
        device.renewed_at, device.lease_until = Now(), from_now(seconds)
    Device.objects.bulk_create(
        devices,
        update_conflicts=True,
        unique_fields=["machine", "kind", "index"],
        update_fields=["model", "memory_bytes", "hour_nanousd", "renewed_at", "lease_until"],
    )


def devices_register() -> None:
    """Stores the devices of a worker that starts, and deletes rows that were not renewed for a day."""
    Device.objects.filter(lease_until__lt=from_now(-FORGOTTEN_SECONDS)).delete()
    devices_renew()


def devices_withdraw() -> None:
    """Lets the devices of a worker that stops no longer count. Another worker of the machine may renew them again."""
    rows_of(own_devices(get_config())).update(lease_until=Now())


def rows_of(devices: list[Device]) -> QuerySet[Device]:
    """Returns the stored rows of `devices`, which are devices of one machine and at least one."""
    conditions = Q()
    for device in devices:
        conditions |= Q(kind=device.kind, index=device.index)
    return Device.objects.filter(conditions, machine=devices[0].machine)
