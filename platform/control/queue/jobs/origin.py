"""The request that created a job. The job's first event contains the request's id and trace context.

A worker restores both before it runs an attempt. The log lines and spans of the attempt, and of jobs that a pipeline
creates after the attempt, therefore belong to the request.
"""

from structlog.contextvars import get_contextvars

from control.core.observability import tracing
from control.queue.jobs.models import JobEvent

REQUEST_ID, TRACEPARENT = "request_id", "traceparent"


def origin() -> dict[str, str]:
    """Returns the id and trace context of the current request, or nothing outside of requests."""
    values = {REQUEST_ID: str(get_contextvars().get(REQUEST_ID, "")), TRACEPARENT: tracing.traceparent()}
    return {name: value for name, value in values.items() if value}


def origin_of(job_id: str) -> dict[str, str]:
    data = JobEvent.objects.filter(job_id=job_id, seq=1).values_list("data", flat=True).first() or {}
    return {name: str(data[name]) for name in (REQUEST_ID, TRACEPARENT) if name in data}
