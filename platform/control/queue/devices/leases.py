"""Leases of devices for jobs: which job fits which free device of this worker, and the lease that a claim takes.

A device is stated if the operators have stated its memory. A worker with stated devices claims a job only if one of its
free devices has the memory that the job needs. The job holds this device until the attempt ends. A worker without
stated devices claims every job, and several jobs may hold its device.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now

from control.core.settings.config import get_config
from control.queue.devices.holds import hold_add
from control.queue.devices.models import Device, DeviceLease, EndpointLease
from control.queue.devices.own import own_devices
from control.queue.devices.quota import devices_held_locked, may_hold_another
from control.queue.devices.selectors import is_valid, leases_valid, names_of
from control.queue.devices.services import rows_of
from control.queue.jobs.models import Job


@dataclass(frozen=True, slots=True)
class Offer:
    """The free devices of this worker."""

    devices: Sequence[Device]
    is_limited: bool  # False: no devices are stated, so every job fits

    def fits(self) -> Q:
        """Matches the jobs that fit on one of the devices and whose organization may hold another device.

        If a job names its hardware, the device must have this name.
        """
        names = {name for device in self.devices for name in names_of(device)}
        if not self.is_limited:
            return Q(hardware__in=["", *names])
        if not self.devices:
            return Q(pk__in=())
        fits = self._fits_one_of(self.devices, Q(hardware=""))
        for name in sorted(names):
            named = [device for device in self.devices if name in names_of(device)]
            fits |= self._fits_one_of(named, Q(hardware=name))
        return fits & may_hold_another()

    def allows(self, job: Job) -> bool:
        """Returns whether the job's organization may hold another device. Locks the organization if `is_limited`."""
        return not self.is_limited or not devices_held_locked(job.organization_id).is_at_limit

    @staticmethod
    def _fits_one_of(devices: Sequence[Device], asked: Q) -> Q:
        fits = Q(memory_needed__isnull=True)
        largest = {device.kind: _memory(device) for device in sorted(devices, key=_memory)}
        for kind, memory_bytes in largest.items():
            fits |= Q(**{f"memory_needed__{kind}__lte": memory_bytes})
        return asked & fits

    def choose(self, job: Job) -> Device | None:
        """Returns the smallest device that fits the job, or None if no device is registered.

        The job must match `Offer.fits`.
        """
        if not self.is_limited:
            return next(iter(self.devices), None)
        fitting = (device for device in self.devices if fits(job.memory_needed, device, job.hardware))
        return min(fitting, key=_memory)


def devices_offered() -> Offer:
    """Returns the free devices of this worker.

    Call this in the transaction of the claim. The rows of stated devices are locked, so that two workers of a machine
    cannot both lease the same device.
    """
    config = get_config()
    rows = rows_of(own_devices(config))
    if not config.devices:
        return Offer(list(rows), is_limited=False)
    locked = list(rows.order_by("kind", "index").select_for_update(no_key=True))
    return Offer(free_among(locked), is_limited=True)


def free_among(devices: Sequence[Device]) -> list[Device]:
    """Returns the devices that neither a job nor an endpoint holds. The caller has locked their rows."""
    by_jobs = leases_valid().filter(device__in=devices).values_list("device_id", flat=True)
    by_endpoints = EndpointLease.objects.filter(device__in=devices).values_list("device_id", flat=True)
    held = {*by_jobs, *by_endpoints}
    return [device for device in devices if device.pk not in held]


def device_lease(device: Device, *, job_id: str, fence: int) -> None:
    """Gives the device to a job that was claimed with this fence, and deletes leases that have ended."""
    ended = DeviceLease.objects.filter(Q(device=device) | Q(job_id=job_id)).exclude(is_valid())
    for lease in ended.select_related("job"):  # these attempts lost their worker, so their end is not recorded yet
        lease.delete()
        hold_add(lease.device_id, since=lease.since, until=lease.job.lease_until or lease.since)
    DeviceLease.objects.create(device=device, job_id=job_id, fence=fence, since=Now())


def device_is_held(*, job_id: str, fence: int) -> bool:
    """Returns whether the job still holds the device that it got with this fence.

    When the lease of a job expires, its device may pass to another job before the job itself is claimed again.
    """
    return DeviceLease.objects.filter(job_id=job_id, fence=fence).exists()


def device_suffices(needed: Mapping[str, int], *, job_id: str, fence: int) -> bool:
    """Returns whether the job holds a device with the needed memory (see `Job.memory_needed`)."""
    lease = DeviceLease.objects.select_related("device").filter(job_id=job_id, fence=fence).first()
    return lease is not None and fits(needed, lease.device)


def device_facts(device: Device) -> dict[str, Any]:
    """Returns the facts about the device that the ledger needs when the attempt ends: its kind and its price."""
    price = {} if device.hour_nanousd is None else {"hour_nanousd": device.hour_nanousd}
    return {"device": device.kind, **price}


def visible_devices(device: Device) -> str | None:
    """Returns CUDA_VISIBLE_DEVICES for the process of a job that holds the device; None: no devices are stated."""
    if device.memory_bytes is None:
        return None
    return str(device.index) if device.kind == "cuda" else ""


def fits(needed: Mapping[str, int] | None, device: Device, hardware: str = "") -> bool:
    """Returns whether a device with stated memory has what a job needs (see `Job.memory_needed` and `Job.hardware`)."""
    if hardware and hardware not in names_of(device):
        return False
    return needed is None or (device.kind in needed and needed[device.kind] <= _memory(device))


def _memory(device: Device) -> int:
    assert device.memory_bytes is not None, "the memory of this device was not stated"
    return device.memory_bytes
