"""Jobs: the batches, trainings and evaluations that workers run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from slipstream.drivers import Items, Page, Steps, listing, procedure
from slipstream.http import D, Resource, path_of
from slipstream.records import Record, record
from slipstream.types import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Record):
    id: str
    kind: str  # batch, training, evaluation
    status: str  # queued, running, paused, succeeded, failed, cancelled
    attempt: int
    queue_position: int | None = None  # 1 for the job that workers claim next; None: the job is not waiting
    blocked: Mapping[str, Any] | None = None  # why no worker claims the waiting job; keys: code, message
    paused: Mapping[str, Any] | None = None
    progress: Progress | None = None
    metrics: Mapping[str, Any]
    result: Mapping[str, Any]
    error: Mapping[str, Any] | None = None  # keys: class, code, message, retryable
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    cancel_requested_at: int | None = None

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        progress = values.get("progress")
        return record(cls, {**values, "progress": None if progress is None else record(Progress, progress)})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Record):
    id: str
    job_id: str
    type: str
    data: Mapping[str, Any]
    created_at: int


class Jobs(Resource[D]):
    @procedure
    def retrieve(self, job_id: str) -> Steps[Job]:
        return self.http.get(Job, path_of("jobs", job_id))

    @listing
    def list(self) -> Items[Page[Job]]:
        return self.http.pages(Job, "jobs")

    @listing
    def events(self, job_id: str) -> Items[Page[JobEvent]]:
        """Yield the job's events, oldest first."""
        return self.http.pages(JobEvent, path_of("jobs", job_id, "events"))

    @procedure
    def cancel(self, job_id: str) -> Steps[Job]:
        """Cancel the job; it ends within seconds, and finished work is kept."""
        return self.http.post(Job, path_of("jobs", job_id, "cancel"))
