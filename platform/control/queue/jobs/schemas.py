"""Responses that describe jobs."""

from typing import Self

from control.core.api.schemas import ResponseModel
from control.queue.jobs.models import Job


class Progress(ResponseModel):
    done: int
    total: int
    unit: str

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """None: the job has reported no progress yet."""
        if not job.progress_unit:
            return None
        return cls(done=job.progress_done, total=job.progress_total, unit=job.progress_unit)
