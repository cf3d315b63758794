"""Jobs as the API shows them."""

from typing import Any

from control.core.api.times import unix
from control.queue.jobs.models import Job, JobEvent


def progress_json(job: Job) -> dict[str, Any] | None:
    if not job.progress_unit:
        return None
    return {"done": job.progress_done, "total": job.progress_total, "unit": job.progress_unit}


def job_json(job: Job) -> dict[str, Any]:
    return {
        "id": job.pk,
        "object": "job",
        "kind": job.kind,
        "status": job.status,
        "attempt": job.attempt,
        "paused": job.paused,
        "progress": progress_json(job),
        "metrics": job.metrics,
        "result": job.result,
        "error": job.error,
        "created_at": unix(job.created_at),
        "started_at": unix(job.started_at),
        "finished_at": unix(job.finished_at),
        "cancel_requested_at": unix(job.cancel_requested_at),
    }


def event_json(event: JobEvent) -> dict[str, Any]:
    return {
        "id": str(event.seq),
        "object": "job.event",
        "job_id": event.job_id,
        "type": event.type,
        "data": event.data,
        "created_at": unix(event.created_at),
    }
