"""What the rows say at the moment of a scrape: queue, workers, outbox, deployments. The same from every process.

So of several web processes' answers take the maximum, never the sum.
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

ALIVE_SECONDS = 60.0  # since a worker's last heartbeat; they come every few seconds


class Census(Collector):
    """Where the database is away, it says that and no more."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        try:
            with across_tenants(Across.CONSOLE):
                families = [*_queue(), *_workers(), *_outbox(), *_deployments()]
        except DatabaseError as error:
            log.warning("rows not counted", error=str(error))
            families = []
        yield GaugeMetricFamily("slipstream_database_up", "Whether rows can be read.", value=float(bool(families)))
        yield from families


def _queue() -> Iterable[GaugeMetricFamily]:
    waiting = Job.objects.filter(is_waiting())
    found = {
        (row["kind"], row["priority"]): (row["number"], row["oldest"])
        for row in waiting.order_by().values("kind", "priority").annotate(number=Count("pk"), oldest=Min("created_at"))
    }
    number = GaugeMetricFamily("slipstream_jobs_waiting", "Due, and nobody's.", labels=["kind", "priority"])
    age = GaugeMetricFamily(
        "slipstream_job_oldest_waiting_seconds", "Since the oldest of them was made.", labels=["kind", "priority"]
    )
    now = timezone.now()
    for kind, priority in sorted({*found, *((str(kind), priority) for kind, priority in PRIORITIES.items())}):
        num_jobs, oldest = found.get((kind, priority), (0, now))
        number.add_metric([kind, str(priority)], num_jobs)
        age.add_metric([kind, str(priority)], max(0.0, (now - oldest).total_seconds()))
    paused = Job.objects.filter(status=Job.Status.QUEUED).exclude(is_waiting())
    running, abandoned = Job.objects.filter(is_running()), Job.objects.filter(is_abandoned())
    kinds = Job.Kind.values
    return (
        number,
        age,
        _by("slipstream_jobs_paused", "Queued until a later time.", paused, "kind", also=kinds),
        _by("slipstream_jobs_running", "Held under a lease.", running, "kind", also=kinds),
        _by("slipstream_jobs_abandoned", "Running under a lease that ran out.", abandoned, "kind", also=kinds),
    )


def _workers() -> Iterable[GaugeMetricFamily]:
    since = timezone.now() - dt.timedelta(seconds=ALIVE_SECONDS)
    alive = Worker.objects.filter(heartbeat_at__gte=since)
    text = f"Heard of within {ALIVE_SECONDS:.0f} s."
    return (_by("slipstream_workers", text, alive, "role", also=("jobs", "deployments")),)


def _outbox() -> Iterable[GaugeMetricFamily]:
    pending = WebhookDelivery.objects.filter(status=WebhookDelivery.Status.PENDING, endpoint__disabled="")
    found = pending.aggregate(number=Count("pk"), oldest=Min("created_at"))
    age = (timezone.now() - found["oldest"]).total_seconds() if found["oldest"] else 0.0
    return (
        GaugeMetricFamily("slipstream_webhooks_pending", "To be sent, or sent again.", value=found["number"]),
        GaugeMetricFamily(
            "slipstream_webhook_oldest_pending_seconds", "Since the oldest of them was made.", value=max(0.0, age)
        ),
    )


def _deployments() -> Iterable[GaugeMetricFamily]:
    there = Deployment.objects.filter(deleted_at=None)
    return (_by("slipstream_deployments", "Endpoints, by state.", there, "state", also=Deployment.State.values),)


def _by(
    name: str,
    text: str,
    rows: "QuerySet[Job] | QuerySet[Worker] | QuerySet[Deployment]",
    column: str,
    *,
    also: Iterable[str],
) -> GaugeMetricFamily:
    """`also`: values to be shown though no row has them, so that alerts and autoscalers see 0 and not nothing."""
    counted = dict(rows.order_by().values_list(column).annotate(Count("pk")))
    family = GaugeMetricFamily(name, text, labels=[column])
    for value in sorted({*counted, *also}):
        family.add_metric([value], counted.get(value, 0))
    return family
