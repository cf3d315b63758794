"""Responses that describe jobs."""

from typing import Self

from pydantic import Field

from control.core.api.schemas import ResponseModel
from control.queue.jobs.models import Job


class Paused(ResponseModel):
    """Why a job is paused.

    `spend_cap_reached`: until the cap is raised or removed, or the next month begins.
    `paused_on_request`: until its fine-tuning job is resumed.
    """

    code: str
    message: str
    cap_id: str | None = Field(description="The spend cap or the quote whose cap is reached.")


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
