"""Limits the devices that an organization holds at once, for jobs and endpoints together.

Only leases of stated devices count: a device whose memory is not stated is shared. A claim and the lease of an endpoint
lock the organization before they count, so that two transactions cannot both take the last device that is allowed.
"""

from collections import Counter
from dataclasses import dataclass

from django.db.models import Count, Q

from control.core.settings.config import get_config
from control.queue.devices.models import EndpointLease
from control.queue.devices.selectors import leases_valid
from control.tenants.quotas.models import Limits
from control.tenants.quotas.quota import organization_lock, quota_of, quota_with

CODE = "devices_quota_exceeded"
MAX_NAMES = 5  # maximum number of names in a message


@dataclass(frozen=True, slots=True)
class Held:
    """The jobs and replicas that hold the devices of an organization."""

    jobs: list[str]  # ids
    replicas: list[str]  # names
    limit: int

    @property
    def is_at_limit(self) -> bool:
        return len(self.jobs) + len(self.replicas) >= self.limit

    def message(self, waiting: str) -> str:
        """Args: waiting: `job` or `endpoint`."""
        number = len(self.jobs) + len(self.replicas)
        holders = [
            f"{len(names)} by {kind} ({', '.join(names[:MAX_NAMES])}{', …' if len(names) > MAX_NAMES else ''})"
            for kind, names in (("jobs", self.jobs), ("endpoints", self.replicas))
            if names
        ]
        held = f": {' and '.join(holders)}" if holders else ""
        return (
            f"Your organization holds {number} of at most {self.limit} devices{held}. The {waiting} starts when fewer "
            "are held."
        )


def devices_held(organization_id: str, *, without: str = "") -> Held:
    """Returns the jobs and replicas that hold devices of the organization.

    A replica counts once. It can have a second lease on a lost machine from which it was moved, but that lease has no
    engine any more.

    Args: without: name of a replica that is not counted.
    """
    jobs = leases_valid().filter(job__organization=organization_id, device__memory_bytes__isnull=False)
    replicas = EndpointLease.objects.filter(organization=organization_id).exclude(replica=without)
    return Held(
        list(jobs.order_by("since").values_list("job_id", flat=True)),
        list(dict.fromkeys(replicas.order_by("since").values_list("replica", flat=True))),
        quota_of(organization_id).devices,
    )


def devices_held_locked(organization_id: str, *, without: str = "") -> Held:
    """Locks the organization and returns `devices_held`.

    Call this in the transaction that leases a device. Until it ends, no other transaction can lease a device for the
    organization.
    """
    organization_lock(organization_id)
    return devices_held(organization_id, without=without)


def may_hold_another() -> Q:
    """Matches the jobs whose organization may hold another device."""
    held = Counter[str]()
    jobs = leases_valid().filter(device__memory_bytes__isnull=False).order_by().values_list("job__organization_id")
    replicas = EndpointLease.objects.order_by().values_list("organization_id")
    for rows, counted in ((jobs, "pk"), (replicas, "replica")):  # a replica counts once, as in `devices_held`
        for organization_id, number in rows.annotate(number=Count(counted, distinct=True)):
            held[organization_id] += number
    default = get_config().max_devices
    own = Limits.objects.in_bulk(held)
    limits = {organization_id: quota_with(own.get(organization_id)).devices for organization_id in held}
    full = [organization_id for organization_id, number in held.items() if number >= limits[organization_id]]
    # Sub-queries instead of joins, because PostgreSQL cannot lock rows of the nullable side of an outer join.
    if default == 0:
        allowed = Q(organization__in=Limits.objects.filter(devices__gt=0).values("pk"))
    else:
        allowed = ~Q(organization__in=Limits.objects.filter(devices=0).values("pk"))
    return allowed & ~Q(organization__in=full)
