"""The queue page: waiting jobs by organization, leases of running jobs, and workers with their heartbeats."""

import datetime as dt
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Count, Min
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone

from control.core.settings.config import get_config
from control.operations.console.visitors import staff_may
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.selectors import SILENT_SECONDS, is_waiting

MAX_LINES = 100


def queue(request: HttpRequest) -> HttpResponse:
    """Shows the page to staff only, because it covers all organizations."""
    if not staff_may(request, "jobs.view_job"):
        raise PermissionDenied
    now = timezone.now()
    context = {
        **admin.site.each_context(request),
        "title": "Queue and workers",
        "waiting": _waiting(now),
        "num_backing_off": Job.objects.filter(status=Job.Status.QUEUED).exclude(is_waiting()).count(),
        "running": _running(now),
        "workers": _workers(now),
        "lease_seconds": get_config().lease_seconds,
    }
    return TemplateResponse(request, "console/queue.html", context)


def _waiting(now: dt.datetime) -> list[dict[str, Any]]:
    rows = Job.objects.filter(is_waiting()).order_by().values("organization_id", "organization__name")
    groups = rows.annotate(num_jobs=Count("pk"), oldest=Min("created_at")).order_by("oldest")[:MAX_LINES]
    return [{**row, "age": _seconds(now - row["oldest"])} for row in groups]


def _running(now: dt.datetime) -> list[dict[str, Any]]:
    """Lists running jobs by the end of their lease, so that jobs with an expired lease come first."""
    jobs = Job.objects.filter(status=Job.Status.RUNNING).select_related("organization").order_by("lease_until")
    return [
        {"job": job, "lease": _seconds(job.lease_until - now), "is_expired": job.lease_until <= now}
        for job in jobs[:MAX_LINES]
        if job.lease_until is not None
    ]


def _workers(now: dt.datetime) -> list[dict[str, Any]]:
    return [
        {
            "worker": worker,
            "age": _seconds(now - worker.heartbeat_at),
            "is_silent": (now - worker.heartbeat_at).total_seconds() > SILENT_SECONDS,
        }
        for worker in Worker.objects.order_by("role", "pk")[:MAX_LINES]
    ]


def _seconds(span: dt.timedelta) -> str:
    """Formats a time span as hours, minutes and whole seconds: `1:02:03`, `-0:00:05`."""
    seconds = round(span.total_seconds())
    return f"{'-' if seconds < 0 else ''}{dt.timedelta(seconds=abs(seconds))}"
