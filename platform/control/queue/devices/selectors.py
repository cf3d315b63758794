"""Selectors for devices and the leases on them."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from control.billing.usage.device_time import NANO, device_prices
from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.queue.devices.models import Device, DeviceLease, EndpointLease
from control.queue.jobs.models import Job
from control.tenants.row_security.scope import Across, across_tenants

_GROUP = ("kind", "model", "memory_bytes", "hour_nanousd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Devices that are present and do not differ in kind, model, memory and price."""

    name: str  # by which requests ask for such a device: the model or, if it is unknown, the kind
    device_kind: str
    model: str | None  # None: unknown
    memory_bytes: int | None  # None: not stated
    price_per_hour: float | None  # USD for one device; None: no price is set
    count: int
    free: int  # devices that neither a job nor an endpoint holds


def names_of(device: Device) -> list[str]:
    """Returns the names by which jobs and endpoints can ask for the device: its model, if it is known, and its kind."""
    return [device.model, device.kind] if device.model else [device.kind]


def is_valid() -> Q:
    """Matches leases whose job still runs with the fence with which it took the device."""
    return Q(job__status=Job.Status.RUNNING, job__fence=F("fence"), job__lease_until__gte=Now())


def leases_valid() -> QuerySet[DeviceLease]:
    return DeviceLease.objects.filter(is_valid())


def devices_present() -> QuerySet[Device]:
    """Returns the devices on which a worker can run jobs."""
    return Device.objects.filter(lease_until__gt=Now())


def endpoint_devices_present() -> QuerySet[Device]:
    """Returns the devices on which a supervisor can start engines of endpoints."""
    return Device.objects.filter(endpoints_until__gt=Now())


def is_free() -> Q:
    """Matches devices that neither a job nor an endpoint holds."""
    by_jobs, by_endpoints = leases_valid(), EndpointLease.objects.all()
    return Q(
        ~Exists(by_jobs.filter(device=OuterRef("pk"))),
        ~Exists(by_endpoints.filter(device=OuterRef("pk"))),
    )


def hour_usd(kind: str, hour_nanousd: int | None, prices: Mapping[str, float]) -> float | None:
    """Returns the price of one hour of a device: its own price, or else the price of its kind; None: neither is set."""
    return prices.get(kind) if hour_nanousd is None else hour_nanousd / NANO


def hardware() -> list[Hardware]:
    """Returns the devices of all machines in groups. A memory or price that is not stated is taken from the kind."""
    prices, memory = device_prices(), dict[str, int](get_config().device_memory_bytes.items())
    present = devices_present() | endpoint_devices_present()
    groups = present.order_by(*_GROUP).values(*_GROUP)
    with across_tenants(Across.HARDWARE):
        rows = list(groups.annotate(count=Count("pk"), free=Count("pk", filter=is_free())))
    return [
        Hardware(
            name=row["model"] or row["kind"],
            device_kind=row["kind"],
            model=row["model"] or None,
            memory_bytes=memory.get(row["kind"]) if row["memory_bytes"] is None else row["memory_bytes"],
            price_per_hour=hour_usd(row["kind"], row["hour_nanousd"], prices),
            count=row["count"],
            free=row["free"],
        )
        for row in rows
    ]


def hardware_named(name: str) -> list[Hardware]:
    """Returns the groups of present devices with this model or of this kind."""
    return [group for group in hardware() if name in (group.name, group.device_kind)]


def hardware_check(name: str | None) -> str:
    """Returns the value to store in `Job.hardware`. Raises: ApiError: 400, no device that is present has this name."""
    if name is None:
        return ""
    if not hardware_named(name):
        groups = hardware()
        present = sorted({group.name for group in groups} | {group.device_kind for group in groups})
        message = (
            f"hardware must be one of {present}, the models and kinds of the devices that are present "
            f"(GET /v1/hardware), got {name[:80]!r}."
        )
        raise ApiError(400, message, "hardware_not_found", "hardware")
    return name
