"""Leases of devices for the engines of endpoints.

An endpoint and a job never hold the same stated device: both lock the rows of the machine's devices before they choose
a free one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.utils import timezone

from control.core.settings.config import get_config
from control.queue.devices.holds import hold_add
from control.queue.devices.leases import fits, free_among
from control.queue.devices.models import Device, EndpointLease
from control.queue.devices.own import own_devices
from control.queue.devices.quota import CODE, devices_held_locked
from control.queue.devices.selectors import endpoint_devices_present, names_of
from control.queue.devices.services import rows_of
from control.queue.devices.shortage import no_device_fits, no_such_hardware


class NoDevice(Exception):
    """The replica has to wait for a device.

    Args: code: `no_such_hardware`, `no_device_fits`, `no_free_device` or `devices_quota_exceeded`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointClaim:
    """A replica for which a supervisor needs a device."""

    organization_id: str
    deployment_id: str
    replica: str  # its name
    fence: int
    memory_needed: Mapping[str, int]  # as in `Job.memory_needed`
    hardware: str = ""  # as in `Job.hardware`


def endpoint_device_lease(claim: EndpointClaim) -> Device:
    """Leases the smallest free device of this supervisor that fits the replica.

    If the replica already holds a device that fits, it keeps that device.

    Call this in a transaction, and only if the replica has no process on this machine.

    Raises: NoDevice: no device is free, or the organization holds as many as it may. The replica then holds no device
        of this machine.
    """
    locked = list(rows_of(own_devices(get_config())).order_by("kind", "index").select_for_update(no_key=True))
    own = EndpointLease.objects.filter(replica=claim.replica, device__in=locked)
    kept = next((lease.device for lease in own.select_related("device") if _fits(claim, lease.device)), None)
    if kept is not None:
        own.update(fence=claim.fence)
        return kept
    endpoint_leases_end(list(own))
    fitting = [device for device in free_among(locked) if _fits(claim, device)]
    if not fitting:
        raise _no_device(claim, locked)
    held = devices_held_locked(claim.organization_id, without=claim.replica)
    if held.is_at_limit:
        raise NoDevice(CODE, held.message("endpoint"))
    device = min(fitting, key=lambda device: device.memory_bytes or 0)
    _lease(device, claim)
    return device


def endpoint_leases_adopt(engines: Mapping[int, EndpointClaim]) -> None:
    """Leases the CUDA devices on which engines of this machine run without a lease, if nothing else holds them.

    The engines were started before the devices were stated, so the limit of the organization does not apply.

    Args: engines: maps the number of a device to the replica whose engine runs there.
    """
    with transaction.atomic():
        locked = list(rows_of(own_devices(get_config())).order_by("kind", "index").select_for_update(no_key=True))
        for device in free_among(locked):
            if device.kind == "cuda" and device.index in engines:
                _lease(device, engines[device.index])


def _lease(device: Device, claim: EndpointClaim) -> None:
    EndpointLease.objects.create(
        device=device,
        organization_id=claim.organization_id,
        deployment_id=claim.deployment_id,
        replica=claim.replica,
        fence=claim.fence,
        since=Now(),
    )


def endpoint_leases_on(machine: str) -> QuerySet[EndpointLease]:
    return EndpointLease.objects.filter(device__machine=machine)


def endpoint_leases_end(leases: Collection[EndpointLease]) -> None:
    """Deletes the leases of replicas whose engines have ended, so that others can lease the devices."""
    for lease in leases:
        with transaction.atomic():
            if EndpointLease.objects.filter(pk=lease.pk).delete()[0]:
                hold_add(lease.device_id, since=lease.since, until=timezone.now())


def _fits(claim: EndpointClaim, device: Device) -> bool:
    return device.memory_bytes is not None and fits(claim.memory_needed, device, claim.hardware)


def _no_device(claim: EndpointClaim, here: Sequence[Device]) -> NoDevice:
    """Builds the error. Devices of other machines count too, because the replica is passed on to their supervisors."""
    elsewhere = endpoint_devices_present().exclude(pk__in=[device.pk for device in here])
    devices = [*here, *elsewhere]
    num_fitting = sum(_fits(claim, device) for device in devices)
    if claim.hardware:
        present, devices = devices, [device for device in devices if claim.hardware in names_of(device)]
        if not devices:
            return NoDevice("no_such_hardware", no_such_hardware("endpoint", claim.hardware, present))
    if not num_fitting:
        return NoDevice("no_device_fits", no_device_fits("endpoint", claim.memory_needed, devices))
    held = "The device that fits is" if num_fitting == 1 else f"All {num_fitting} devices that fit are"
    return NoDevice(
        "no_free_device", f"{held} held by jobs or other endpoints. The endpoint starts when one becomes free."
    )
