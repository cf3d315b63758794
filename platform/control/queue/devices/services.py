"""Registers the devices of the worker or the supervisor in this process."""

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from control.core.database_clock import from_now
from control.core.settings.config import get_config
from control.queue.devices.models import Device
from control.queue.devices.own import own_devices
from control.queue.jobs.selectors import FORGOTTEN_SECONDS, SILENT_SECONDS


def devices_renew() -> None:
    """Stores the devices of this worker, or renews their rows. Several processes may renew the same row."""
    _renew("lease_until")


def devices_register() -> None:
    """Stores the devices of a worker that starts, and deletes rows that were not renewed for a day."""
    _forget_lost()
    devices_renew()


def endpoint_devices_register() -> None:
    """Stores the devices of a supervisor that starts, and deletes rows that were not renewed for a day.

    Leases on the deleted devices no longer count against organizations.
    """
    _forget_lost()
    endpoint_devices_renew()


def endpoint_devices_renew() -> None:
    """Stores the devices that this supervisor leases for engines, or renews their rows.

    The devices are offered to jobs only while a worker renews them, too.
    """
    _renew("endpoints_until")


def _forget_lost() -> None:
    limit = from_now(-FORGOTTEN_SECONDS)
    Device.objects.filter(Q(endpoints_until=None) | Q(endpoints_until__lt=limit), lease_until__lt=limit).delete()


def _renew(offer: str) -> None:
    """Args: offer: the column that says until when the devices are offered to jobs or to endpoints."""
    config = get_config()
    devices, until = own_devices(config), from_now(max(SILENT_SECONDS, 2 * config.reconcile_seconds))
    for device in devices:
        device.renewed_at, device.lease_until = Now(), Now()  # initial values of new rows
        setattr(device, offer, until)
    Device.objects.bulk_create(
        devices,
        update_conflicts=True,
        unique_fields=["machine", "kind", "index"],
        update_fields=["model", "memory_bytes", "hour_nanousd", "renewed_at", offer],
    )


def devices_withdraw() -> None:
    """Stops offering this worker's devices to jobs. Another worker of the machine may offer them again."""
    rows_of(own_devices(get_config())).update(lease_until=Now())


def endpoint_devices_withdraw() -> None:
    """Stops offering this supervisor's devices to endpoints. Leases on these devices stay."""
    rows_of(own_devices(get_config())).update(endpoints_until=Now())


def rows_of(devices: list[Device]) -> QuerySet[Device]:
    """Returns the stored rows of the devices. Args: devices: at least one; all are of the same machine."""
    conditions = Q()
    for device in devices:
        conditions |= Q(kind=device.kind, index=device.index)
    return Device.objects.filter(conditions, machine=devices[0].machine)
