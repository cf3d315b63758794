"""The devices that run jobs and endpoints, with their prices."""

from dataclasses import dataclass

from slipstream.drivers import Items, Page, listing
from slipstream.http import D, Resource
from slipstream.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware(Record):
    """Devices that do not differ in kind, model, memory and price."""

    name: str | None = None  # the value of `hardware` in requests for such a device
    device_kind: str  # cuda or cpu
    model: str | None = None
    memory_bytes: int | None = None  # of one device; None: not stated
    price_per_hour: float | None = None  # USD for one device; None: no price is set
    count: int
    free: int  # devices that neither a job nor an endpoint holds


class HardwareCatalog(Resource[D]):
    @listing
    def list(self) -> Items[Page[Hardware]]:
        """Yield each kind of device, with its number and how many are free."""
        return self.http.pages(Hardware, "hardware")
