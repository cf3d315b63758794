"""The kinds of devices of the installation, with the memory and the prices that the operators have stated."""

from dataclasses import dataclass

from control.billing.ledger.services import device_kind
from control.billing.usage.device_time import device_prices
from control.core.settings.config import get_config
from control.queue.devices.selectors import hardware_named


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    name: str  # cuda or cpu
    memory_bytes: int | None  # of one device; None: unknown
    price_per_hour: float | None  # USD; None: no price is set
    hardware: str | None = None  # name of the registered device that was asked for; None: any device of the kind


def device_kinds(name: str = "") -> list[DeviceKind]:
    """Returns this machine's kind of device, and then the other kinds for which a price or the memory is set.

    Args: name: kind or model of a device. If a registered device has this name, only such devices are returned.
    """
    if name and (groups := hardware_named(name)):
        return [
            DeviceKind(
                name=group.device_kind,
                memory_bytes=group.memory_bytes,
                price_per_hour=group.price_per_hour,
                hardware=group.name,
            )
            for group in groups
        ]
    own, prices = device_kind(), device_prices()
    memory = dict[str, int](get_config().device_memory_bytes.items())
    others = sorted({*prices, *memory} - {own})
    return [
        DeviceKind(name=name, memory_bytes=memory.get(name), price_per_hour=prices.get(name)) for name in (own, *others)
    ]
