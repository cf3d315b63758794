"""Responses that describe jobs."""

from typing import Annotated, Literal, Self

from pydantic import Field, SkipValidation

from control.core.api.schemas import Figures, OneOf, ResponseModel, Unix
from control.queue.jobs.models import Job, JobEvent

QUEUE_POSITION = (
    "1 means that workers claim this job before all other waiting jobs, also those of other organizations. The "
    "position is an estimate: it assumes that no running job ends and no job is added. Null if the job is not waiting "
    "for a worker, or waits before another attempt."
)


class Blocked(ResponseModel):
    """Why a job that is waiting is not claimed, or why a replica of a deployment is not started.

    `no_worker`: no worker is running.
    `no_device_fits`: no device that is present has the memory that the job or the replica needs.
    `no_such_hardware`: no device that is present has the kind or model that was asked for as `hardware`.
    `devices_quota_exceeded`: the organization holds as many devices as it may; the message says what holds them.
    `no_free_device`: jobs or other endpoints hold all devices that fit the replica; a job that only has to wait for
    others is not blocked.
    `workers_upgrading`: workers of an older release, which cannot run the job, are still running.
    """

    code: str
    message: str


class Paused(ResponseModel):
    """Why a job is paused.

    `spend_cap_reached`: it is paused until the cap is raised or removed, or the next month begins.
    `paused_on_request`: it is paused until its fine-tuning job is resumed.
    """

    code: str
    message: str
    cap_id: str | None = Field(
        description="The id of the spend cap that was reached, or of the quote whose cap was reached."
    )


class Progress(ResponseModel):
    done: int
    total: int
    unit: str

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """Returns None if the job has reported no progress yet."""
        if not job.progress_unit:
            return None
        return cls(done=job.progress_done, total=job.progress_total, unit=job.progress_unit)


class JobObject(ResponseModel):
    id: str
    object: Literal["job"] = "job"
    kind: str
    status: Annotated[str, OneOf(Job.Status)]
    attempt: int
    queue_position: int | None = Field(description=QUEUE_POSITION)
    blocked: SkipValidation[Blocked | None]
    paused: SkipValidation[Paused | None]
    progress: Progress | None
    metrics: SkipValidation[Figures]
    result: SkipValidation[Figures]
    error: SkipValidation[Figures | None]
    created_at: Unix
    started_at: Unix | None
    finished_at: Unix | None
    cancel_requested_at: Unix | None

    @classmethod
    def of(cls, job: Job) -> Self:
        return cls.from_row(job, progress=Progress.of(job))


class JobEventObject(ResponseModel):
    id: str
    object: Literal["job.event"] = "job.event"
    job_id: str
    type: str
    data: SkipValidation[Figures]
    created_at: Unix

    @classmethod
    def of(cls, event: JobEvent) -> Self:
        return cls.from_row(event, id=str(event.seq))
