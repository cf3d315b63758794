"""What this process counts, for Prometheus. What rows and engines say stands in `census` and `engines`.

Processes of one machine that share a folder, named by PROMETHEUS_MULTIPROC_DIR as prometheus_client has it, answer for
each other: uvicorn's workers, and all of the embedded stack.
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


http_requests = _counter("http_requests", "Requests answered.", "method", "route", "status")
http_request_seconds = _histogram(
    "http_request_seconds", "Until an answer, or the head of a stream.", _REQUEST_SECONDS, "method", "route"
)
tokens = _counter("tokens", "Tokens of models' answers, as billed.", "source", "direction")

wakeups = _counter("wakeups", "Looks at the queue: whether one found a job to claim.", "outcome")
job_claims = _counter("job_claims", "Attempts begun.", "kind")
job_attempt_seconds = _histogram("job_attempt_seconds", "From claim to end of an attempt.", _ATTEMPT_SECONDS, "kind")
job_retries = _counter("job_retries", "Attempts that failed and are to be repeated.", "kind", "failure_class")
job_leases_lost = _counter("job_leases_lost", "Attempts that found their job claimed by another.", "kind")
jobs_ended = _counter("jobs_ended", "Jobs that reached their last state.", "kind", "status")
shards = _counter("shards", "Shards committed.", "kind")
rows = _counter("rows", "Rows of committed shards.", "outcome")
webhook_attempts = _counter("webhook_attempts", "Webhooks sent, by the receiver's answer.", "outcome")


def render(*more: Collector) -> bytes:
    """Prometheus's text, of this process or of all that share the folder, and of `more`."""
    registry = CollectorRegistry()
    if SHARED_FOLDER in os.environ:
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]  # untyped in a typed package
    for collector in more:
        registry.register(collector)
    own = b"" if SHARED_FOLDER in os.environ else generate_latest(_registry)
    return own + generate_latest(registry)
