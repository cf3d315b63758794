"""Tells why no worker can claim a waiting job, however long it waits."""

from collections.abc import Collection

from control.queue.devices.leases import fits
from control.queue.devices.models import Device
from control.queue.devices.selectors import devices_present
from control.queue.jobs.models import Job
from control.queue.jobs.positions import queue_positions_set

NO_WORKER = {
    "code": "no_worker",
    "message": "No worker is running; the operators must start one.",
}


def waiting_described(jobs: Collection[Job]) -> None:
    """Sets `queue_position` and `blocked` of the waiting jobs among `jobs`, which belong to one organization.

    A worker whose devices have no stated memory claims every job.
    """
    queue_positions_set(jobs)
    waiting = [job for job in jobs if job.queue_position is not None]
    if not waiting:
        return
    devices = list(devices_present().only("kind", "memory_bytes"))
    for job in waiting:
        if not devices:
            job.blocked = NO_WORKER
        elif job.memory_needed is not None and not any(
            device.memory_bytes is None or fits(job.memory_needed, device) for device in devices
        ):
            job.blocked = {"code": "no_device_fits", "message": _shortage(job.memory_needed, devices)}


def _shortage(needed: dict[str, int], devices: Collection[Device]) -> str:
    wanted = " or ".join(f"{size / 1e9:.1f} GB ({kind})" for kind, size in sorted(needed.items()))
    largest: dict[str, int] = {}
    for device in devices:
        largest[device.kind] = max(largest.get(device.kind, 0), device.memory_bytes or 0)
    present = ", ".join(f"{size / 1e9:.1f} GB ({kind})" for kind, size in sorted(largest.items()))
    return (
        f"The job needs a device with {wanted}; the largest devices of the workers have {present}. Use `engine` to ask "
        "for less memory (max_context, max_concurrency, weights), or wait for a worker with a larger device."
    )
