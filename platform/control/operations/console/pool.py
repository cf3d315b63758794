"""The pool page: for each device, its current holders, their prices, and the share of the time that it was held."""

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.safestring import SafeString

from control.billing.usage.device_time import device_prices
from control.operations.console.rendering import link
from control.operations.console.visitors import staff_may
from control.queue.devices.holds import DAY, HOUR, held_shares
from control.queue.devices.models import Device, EndpointLease
from control.queue.devices.selectors import hour_usd, is_free, leases_valid
from control.serving.deployments.models import Deployment

PAGE_LINES = 100


@dataclass(frozen=True, slots=True)
class _Holder:
    link: SafeString | str
    organization: str
    detail: str
    since: dt.datetime


def pool(request: HttpRequest) -> HttpResponse:
    """Shows the page to staff only, because it covers all organizations."""
    if not staff_may(request, "jobs.view_job"):
        raise PermissionDenied
    now = timezone.now()
    page = Paginator(Device.objects.all(), PAGE_LINES).get_page(request.GET.get("page"))
    present = Device.objects.filter(Q(lease_until__gt=now) | Q(endpoints_until__gt=now))
    context = {
        **admin.site.each_context(request),
        "title": "Pool of devices",
        "page": page,
        "lines": _lines(list(page), now),
        "num_present": present.count(),
        "num_free": present.filter(is_free()).count(),
    }
    return TemplateResponse(request, "console/pool.html", context)


def _lines(devices: list[Device], now: dt.datetime) -> list[dict[str, Any]]:
    prices, holders = device_prices(), _holders(devices)
    last_hour, last_day = (held_shares(devices, now=now, period=period) for period in (HOUR, DAY))
    return [
        {
            "device": device,
            "price": hour_usd(device.kind, device.hour_nanousd, prices),
            "holders": holders[device.pk],
            "hour": 100 * last_hour.get(device.pk, 0.0),
            "day": 100 * last_day.get(device.pk, 0.0),
            "is_lost": max(device.lease_until, device.endpoints_until or device.lease_until) <= now,
        }
        for device in devices
    ]


def _holders(devices: list[Device]) -> defaultdict[int, list[_Holder]]:
    """Returns the holders of each device. Several jobs may hold a device that the operators have not stated."""
    holders = defaultdict[int, list[_Holder]](list)
    for job_lease in leases_valid().filter(device__in=devices).select_related("job__organization").order_by("since"):
        job = job_lease.job
        name, fence = job.organization.name, f"fence {job_lease.fence}"
        holders[job_lease.device_id].append(_Holder(link(job), name, fence, job_lease.since))
    leases = list(EndpointLease.objects.filter(device__in=devices).select_related("organization").order_by("since"))
    deployments = Deployment.objects.in_bulk({lease.deployment_id for lease in leases})
    for lease in leases:
        deployment, replica = deployments.get(lease.deployment_id), f"replica {lease.replica.rpartition('-')[2]}"
        shown = lease.replica if deployment is None else link(deployment)
        holders[lease.device_id].append(_Holder(shown, lease.organization.name, replica, lease.since))
    return holders
