"""Gauges read from the tables at each scrape: jobs, workers, undelivered webhooks and deployments.

Every web process reports the same values, so a Prometheus query must take their maximum, not their sum.
"""

import datetime as dt
from collections.abc import Iterable, Iterator

import structlog
from django.db import DatabaseError
from django.db.models import Count, Min, QuerySet
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from control.queue.jobs.fair import PRIORITIES
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.selectors import is_abandoned, is_running, is_waiting
from control.serving.deployments.models import Deployment
from control.tenants.row_security.scope import Across, across_tenants
from control.tenants.webhooks.models import WebhookDelivery

log = structlog.get_logger(__name__)

ALIVE_SECONDS = 60.0  # a worker counts as alive for this time after a heartbeat; it sends one every few seconds


class QueueMetrics(Collector):
    """Reads the gauges. If the database is unreachable, only `slipstream_database_up` is reported, as 0."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            with across_tenants(Across.CONSOLE):
                families = [*_queue(), *_workers(), *_outbox(), *_deployments()]
        except DatabaseError as error:
            log.warning("could not read the tables for metrics", error=str(error))
            families = []
        is_up = float(bool(families))
        yield GaugeMetricFamily("slipstream_database_up", "Whether the database is reachable.", value=is_up)
        yield from families


def _queue() -> Iterable[GaugeMetricFamily]:
    waiting = Job.objects.filter(is_waiting())
    groups = {
        (row["kind"], row["priority"]): (row["number"], row["oldest"])
        for row in waiting.order_by().values("kind", "priority").annotate(number=Count("pk"), oldest=Min("created_at"))
    }
    labels = ["kind", "priority"]
    number = GaugeMetricFamily("slipstream_jobs_waiting", "Due jobs that no worker has claimed.", labels=labels)
    age = GaugeMetricFamily("slipstream_job_oldest_waiting_seconds", "Age of the oldest waiting job.", labels=labels)
    now = timezone.now()
    for kind, priority in sorted({*groups, *((str(kind), priority) for kind, priority in PRIORITIES.items())}):
        num_jobs, oldest = groups.get((kind, priority), (0, now))
        number.add_metric([kind, str(priority)], num_jobs)
        age.add_metric([kind, str(priority)], max(0.0, (now - oldest).total_seconds()))
    backing_off = Job.objects.filter(status=Job.Status.QUEUED).exclude(is_waiting())
    paused = Job.objects.filter(status=Job.Status.PAUSED)
    running, abandoned = Job.objects.filter(is_running()), Job.objects.filter(is_abandoned())
    kinds = Job.Kind.values
    return (
        number,
        age,
        _by("slipstream_jobs_backing_off", "Queued jobs that wait after a failure.", backing_off, "kind", also=kinds),
        _by("slipstream_jobs_paused", "Jobs paused by a spend cap or on request.", paused, "kind", also=kinds),
        _by("slipstream_jobs_running", "Jobs that a worker holds under a valid lease.", running, "kind", also=kinds),
        _by("slipstream_jobs_abandoned", "Running jobs whose lease has expired.", abandoned, "kind", also=kinds),
    )


def _workers() -> Iterable[GaugeMetricFamily]:
    since = timezone.now() - dt.timedelta(seconds=ALIVE_SECONDS)
    alive = Worker.objects.filter(heartbeat_at__gte=since)
    text = f"Workers whose last heartbeat is at most {ALIVE_SECONDS:.0f} s old."
    return (_by("slipstream_workers", text, alive, "role", also=("jobs", "deployments")),)


def _outbox() -> Iterable[GaugeMetricFamily]:
    pending = WebhookDelivery.objects.filter(status=WebhookDelivery.Status.PENDING, endpoint__disabled="")
    totals = pending.aggregate(number=Count("pk"), oldest=Min("created_at"))
    age = (timezone.now() - totals["oldest"]).total_seconds() if totals["oldest"] else 0.0
    return (
        GaugeMetricFamily(
            "slipstream_webhooks_pending", "Deliveries to be sent or sent again.", value=totals["number"]
        ),
        GaugeMetricFamily(
            "slipstream_webhook_oldest_pending_seconds", "Age of the oldest pending delivery.", value=max(0.0, age)
        ),
    )


def _deployments() -> Iterable[GaugeMetricFamily]:
    existing = Deployment.objects.filter(deleted_at=None)
    return (_by("slipstream_deployments", "Deployments by state.", existing, "state", also=Deployment.State.values),)


def _by(
    name: str,
    text: str,
    rows: "QuerySet[Job] | QuerySet[Worker] | QuerySet[Deployment]",
    column: str,
    *,
    also: Iterable[str],
) -> GaugeMetricFamily:
    """Returns a gauge with the number of rows for each value of `column`.

    Args:
        also: values that are reported even if no row has them, so that alerts and autoscalers see 0.
    """
    counted = dict(rows.order_by().values_list(column).annotate(Count("pk")))
    family = GaugeMetricFamily(name, text, labels=[column])
    for value in sorted({*counted, *also}):
        family.add_metric([value], counted.get(value, 0))
    return family
