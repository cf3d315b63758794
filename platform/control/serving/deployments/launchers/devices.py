"""Gives each engine a CUDA device of its own, which no other engine of this machine sees.

This is for machines whose supervisors lease no devices (`leased_devices`). Devices that the configuration of the
machine's workers states for jobs are not given to engines.

The replica's row records the device while the process lives, so that the next supervisor knows which devices are taken.
"""

import os
from collections.abc import Collection
from pathlib import Path

from control.core.settings.config import Config
from control.queue.devices.endpoints import NoDevice
from control.queue.devices.models import Device
from control.queue.devices.own import own_devices
from control.queue.devices.selectors import names_of
from control.queue.devices.shortage import no_such_hardware
from control.serving.deployments.models import Replica

DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"


class NoFreeDevice(Exception):
    """Other engines or jobs use all devices of this machine, or the machine has no device."""


def device_for_engine(config: Config, *, ending: Collection[str]) -> str:
    """Returns a free device; an empty text if engines run on the CPU. Only one supervisor may call this at a time.

    Args: ending: devices of processes that were killed and have not ended yet.
    Raises: NoFreeDevice.
    """
    devices = cuda_devices(config)
    if not devices:
        if config.device.startswith("cuda"):
            raise NoFreeDevice("this machine has no CUDA device for endpoints")
        return ""
    here = Replica.objects.exclude(pid=None).filter(node__in=["", config.node_name])
    taken = {*here.values_list("device", flat=True), *ending, *_stated_for_jobs(config)}
    free = next((device for device in devices if device not in taken), None)
    if free is None:
        raise NoFreeDevice(f"other endpoints or jobs use all {len(devices)} CUDA devices of this machine")
    return free


def _stated_for_jobs(config: Config) -> set[str]:
    stated = Device.objects.filter(machine=config.node_name, kind="cuda", memory_bytes__isnull=False)
    return {str(index) for index in stated.values_list("index", flat=True)}


def hardware_require(config: Config, hardware: str) -> None:
    """Checks the hardware that a deployment asks for against this machine's device. Raises: NoDevice."""
    own = own_devices(config.model_copy(update={"devices": ()}))
    if hardware and not any(hardware in names_of(device) for device in own):
        raise NoDevice("no_such_hardware", no_such_hardware("endpoint", hardware, own))


def engine_device(config: Config, device: str) -> str:
    """Returns the engine's argument `--device`. It has no number, because the engine sees only one CUDA device."""
    return "cuda" if device else config.device


def cuda_devices(config: Config) -> list[str]:
    """Returns this machine's devices for endpoints, as they are named in CUDA_VISIBLE_DEVICES."""
    if config.device == "cpu":
        return []
    names = config.endpoint_devices
    if names is None:
        names = os.environ.get(DEVICES_VARIABLE)
    if names is None:
        return [str(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]
    return [name.strip() for name in names.split(",") if name.strip()]
