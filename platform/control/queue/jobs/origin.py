"""Which request a job comes from: its id and trace stand in the job's first event.

A worker takes them up again, so that the log and the trace of an attempt are those of the request, and so are the
jobs that a pipeline makes after it.
"""

from structlog.contextvars import get_contextvars

from control.core.observability import tracing
from control.queue.jobs.models import JobEvent

REQUEST_ID, TRACEPARENT = "request_id", "traceparent"


def origin() -> dict[str, str]:
    """Of what is made now; nothing for what no request brought about."""
    known = {REQUEST_ID: str(get_contextvars().get(REQUEST_ID, "")), TRACEPARENT: tracing.traceparent()}
    return {name: value for name, value in known.items() if value}


def origin_of(job_id: str) -> dict[str, str]:
    data = JobEvent.objects.filter(job_id=job_id, seq=1).values_list("data", flat=True).first() or {}
    return {name: str(data[name]) for name in (REQUEST_ID, TRACEPARENT) if name in data}
