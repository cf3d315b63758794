"""Tells why no worker can claim a waiting job, however long it waits."""

from collections.abc import Collection

from control.queue.devices.leases import fits
from control.queue.devices.models import Device
from control.queue.devices.quota import CODE, devices_held
from control.queue.devices.selectors import devices_present, names_of
from control.queue.devices.shortage import no_device_fits, no_such_hardware
from control.queue.jobs.models import Job
from control.queue.jobs.positions import queue_positions_set
from control.queue.jobs.protocol import HELD, HELD_UNTIL

NO_WORKER = {
    "code": "no_worker",
    "message": "No worker is running; the operators must start one.",
}


def waiting_described(jobs: Collection[Job]) -> None:
    """Sets `queue_position` and `blocked` of the waiting jobs among `jobs`, which belong to one organization.

    A worker whose devices have no stated memory claims every job.
    """
    for job in jobs:
        if job.status == Job.Status.QUEUED and job.not_before == HELD_UNTIL:
            job.blocked = HELD
    queue_positions_set(jobs)
    waiting = [job for job in jobs if job.queue_position is not None]
    if not waiting:
        return
    devices = list(devices_present().only("kind", "model", "memory_bytes"))
    are_counted = bool(devices) and all(device.memory_bytes is not None for device in devices)
    held = devices_held(waiting[0].organization_id) if are_counted else None
    for job in waiting:
        if not devices:
            job.blocked = NO_WORKER
        else:
            job.blocked = _blocked(job, devices)
            if job.blocked is None and held is not None and held.is_at_limit:
                job.blocked = {"code": CODE, "message": held.message("job")}


def _blocked(job: Job, devices: list[Device]) -> dict[str, str] | None:
    if job.hardware:
        present, devices = devices, [device for device in devices if job.hardware in names_of(device)]
        if not devices:
            return {"code": "no_such_hardware", "message": no_such_hardware("job", job.hardware, present)}
    needed = job.memory_needed
    if needed is None or any(device.memory_bytes is None or fits(needed, device) for device in devices):
        return None
    return {"code": "no_device_fits", "message": no_device_fits("job", needed, devices)}
