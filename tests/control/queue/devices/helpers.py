"""Configures the stated devices of this process."""

from typing import Any

from pytest_django import Settings

from control.core.settings.config import StatedDevice, get_config

GB = 10**9


def state(settings: Settings, *devices: StatedDevice, machine: str = "here", **values: Any) -> None:
    update = {"devices": devices, "node_name": machine, **values}
    settings.SLIPSTREAM = get_config().model_copy(update=update)


def gpu(gigabytes: int, **values: Any) -> StatedDevice:
    return StatedDevice(kind="cuda", memory_bytes=gigabytes * GB, **{"model": "H100", **values})


def cpu(gigabytes: int, **values: Any) -> StatedDevice:
    return StatedDevice(kind="cpu", memory_bytes=gigabytes * GB, **values)
