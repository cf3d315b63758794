"""The devices that run jobs and endpoints, with their prices."""

from dataclasses import dataclass

from slipstream.drivers import Items, Page, listing
from slipstream.http import D, Resource
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware(Record):
    """A group of devices that have the same kind, model, memory and price."""

    name: str | None = None  # the value of `hardware` in requests for such a device
    device_kind: str  # cuda or cpu
    model: str | None = None
    memory_bytes: int | None = None  # memory of one device; None if it is not stated
    price_per_hour: float | None = None  # USD for one device; None: no price is set
    count: int
    free: int  # number of devices that no job or endpoint uses


class HardwareCatalog(Resource[D]):
    @listing
    def list(self) -> Items[Page[Hardware]]:
        """Yield the groups of equal devices."""
        return self.http.pages(Hardware, "hardware")
