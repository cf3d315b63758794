"""Selectors for devices and the leases on them."""

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from control.queue.devices.models import Device, DeviceLease
from control.queue.jobs.models import Job


def is_valid() -> Q:
    """Matches leases whose job still runs with the fence with which it took the device."""
    return Q(job__status=Job.Status.RUNNING, job__fence=F("fence"), job__lease_until__gte=Now())


def leases_valid() -> QuerySet[DeviceLease]:
    return DeviceLease.objects.filter(is_valid())


def devices_present() -> QuerySet[Device]:
    """Returns the devices whose row is renewed."""
    return Device.objects.filter(lease_until__gt=Now())


def is_free() -> Q:
    """Matches devices that no job holds."""
    return Q(~Exists(leases_valid().filter(device=OuterRef("pk"))))
