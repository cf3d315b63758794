"""Describes why no device fits a job or an endpoint."""

from collections.abc import Collection, Mapping

from control.queue.devices.models import Device
from control.queue.devices.selectors import names_of


def no_device_fits(holder: str, needed: Mapping[str, int], devices: Collection[Device]) -> str:
    """Returns the message of the code `no_device_fits`.

    Args: holder: `job` or `endpoint`; needed: see `Job.memory_needed`; devices: the present devices.
    """
    wanted = " or ".join(f"{size / 1e9:.1f} GB ({kind})" for kind, size in sorted(needed.items()))
    largest: dict[str, int] = {}
    for device in devices:
        largest[device.kind] = max(largest.get(device.kind, 0), device.memory_bytes or 0)
    present = ", ".join(f"{size / 1e9:.1f} GB ({kind})" for kind, size in sorted(largest.items()))
    owners = "workers" if holder == "job" else "machines that run endpoints"
    return (
        f"The {holder} needs a device with {wanted}; the largest devices of the {owners} have {present}. Use `engine` "
        f"to ask for less memory (max_context, max_concurrency, weights), or wait for a larger device."
    )


def no_such_hardware(holder: str, hardware: str, devices: Collection[Device]) -> str:
    """Returns the message of the code `no_such_hardware`. Args: as `no_device_fits`."""
    present = sorted({name for device in devices for name in names_of(device)})
    return (
        f"The {holder} asks for hardware {hardware!r}, and no such device is present. Present are {present}. The "
        f"{holder} waits until one is registered."
    )
