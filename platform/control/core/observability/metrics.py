"""Prometheus metrics that each process counts by itself. `operations/monitoring` has the other metrics, which are
read from tables (`queue_metrics.py`) or from engines (`engines.py`).

If processes on one machine share a folder (PROMETHEUS_MULTIPROC_DIR, a feature of prometheus_client), each process
reports the sums over all of these processes. Uvicorn's workers share a folder, and so do the processes of the embedded
stack.
"""

import os

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_REQUEST_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_ATTEMPT_SECONDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0)

_registry = CollectorRegistry()


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"slipstream_{name}", text, labels, registry=_registry)


def _histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"slipstream_{name}", text, labels, buckets=buckets, registry=_registry)


http_requests = _counter("http_requests", "Answered HTTP requests.", "method", "route", "status")
http_request_seconds = _histogram(
    "http_request_seconds",
    "Time until the response, or until the headers of a streamed one.",
    _REQUEST_SECONDS,
    "method",
    "route",
)
tokens = _counter("tokens", "Billed tokens of requests to models.", "source", "direction")
reservations_exceeded = _counter("reservations_exceeded", "Requests that cost more than they reserved under a cap.")

wakeups = _counter("wakeups", "Checks of the queue, by whether a job was claimed.", "outcome")
job_claims = _counter("job_claims", "Started attempts.", "kind")
job_attempt_seconds = _histogram("job_attempt_seconds", "Time from claim to end.", _ATTEMPT_SECONDS, "kind")
job_retries = _counter("job_retries", "Failed attempts whose job is tried again.", "kind", "failure_class")
job_leases_lost = _counter("job_leases_lost", "Attempts that lost their job's lease.", "kind")
jobs_ended = _counter("jobs_ended", "Jobs that reached a terminal status.", "kind", "status")
shards = _counter("shards", "Committed shards.", "kind")
rows = _counter("rows", "Rows of committed shards.", "outcome")
webhook_attempts = _counter("webhook_attempts", "Webhook attempts, by the receiver's response.", "outcome")


def render(*more: Collector) -> bytes:
    """Renders, in Prometheus's format, the metrics of this process (or of all that share the folder) and of `more`."""
    registry = CollectorRegistry()
    if SHARED_FOLDER in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # untyped in a typed package
    for collector in more:
        registry.register(collector)
    own = b"" if SHARED_FOLDER in os.environ else generate_latest(_registry)
    return own + generate_latest(registry)
