"""The devices that the worker in this process can use, as rows that are not stored yet."""

import os
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from control.billing.ledger.services import device_kind
from control.billing.usage.device_time import NANO
from control.core.settings.config import Config
from control.queue.devices.models import Device

_MODEL_FIELDS = ("model name", "model")  # in /proc/cpuinfo, and in the files of the NVIDIA driver


def own_devices(config: Config) -> list[Device]:
    """Returns the devices that the operators state; if they state none, the one device that the worker uses."""
    if not config.devices:
        kind = device_kind()
        index = _cuda_index(config) if kind == "cuda" else 0
        return [Device(machine=config.node_name, kind=kind, index=index, model=_model(kind))]
    return [
        Device(
            machine=config.node_name,
            kind=stated.kind,
            index=stated.index,
            model=stated.model,
            memory_bytes=stated.memory_bytes,
            hour_nanousd=None if stated.price_per_hour is None else round(stated.price_per_hour * NANO),
        )
        for stated in sorted(config.devices, key=lambda stated: (stated.kind, stated.index))
    ]


def _cuda_index(config: Config) -> int:
    """Returns the number of the device that child processes use.

    The setting `device` may select one of the devices in CUDA_VISIBLE_DEVICES. By default, it is the first one.
    """
    stated = config.device.partition(":")[2]
    number = int(stated) if stated.isdigit() else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    name = visible[number].strip() if number < len(visible) else ""
    return int(name) if name.isdigit() else number


@cache
def _model(kind: str) -> str:
    """Returns the name of the hardware, or an empty string if the machine does not report it."""
    files = Path("/proc/driver/nvidia/gpus").glob("*/information") if kind == "cuda" else [Path("/proc/cpuinfo")]
    return next(_names(files), "")[:80]


def _names(files: Iterable[Path]) -> Iterator[str]:
    for file in sorted(files):
        for line in file.read_text(errors="replace").splitlines() if file.exists() else ():
            name, _, value = line.partition(":")
            if name.strip().lower() in _MODEL_FIELDS and not value.strip().isdigit():
                yield value.strip()
