"""Queries for fine-tuning jobs and their events."""

from collections.abc import Mapping

from django.db.models import Exists, Q, QuerySet
from django.db.models.fields.json import KeyTransform

from control.billing.ledger.selectors import job_time_column
from control.core.api.errors import ApiError
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.selectors import workers_alive
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.selectors import device_time_column
from workers.kinds import LORA

_OWN_RELATIONS = ("pipeline", "job", "base_model", "adapter")
_PIPELINE_RELATIONS = ("base_model", "batch__job", "training_job", "evaluation_job", "speculator")
CHECKPOINT = "checkpoint_committed"
CHECKPOINT_PREFIX = "ftckpt_"  # prefix of checkpoint ids; an id ends with the number of the checkpoint's commit event
PAUSED_ON_REQUEST = "paused_on_request"  # code of a pause that the customer requested
# Types of the job events that the API lists. Events of other types say the same as events of the pipeline.
LISTED_JOB_EVENTS = (CHECKPOINT, "retried", "cancel_requested", "paused", "resumed")
LISTED_WITHOUT_PIPELINE = (*LISTED_JOB_EVENTS, "queued", "claimed", "succeeded", "failed", "cancelled")


def fine_tuning_jobs_list(organization: Organization) -> QuerySet[FineTuningJob]:
    """Fine-tuning jobs with all related rows that the API shows."""
    computed = {
        "has_worker": Exists(workers_alive().filter(role="jobs")),
        "device_nanousd": device_time_column("pipeline__") + job_time_column("job_id"),
    }
    jobs = FineTuningJob.objects.filter(visible(organization)).annotate(**computed)
    return jobs.select_related(*_OWN_RELATIONS, *(f"pipeline__{name}" for name in _PIPELINE_RELATIONS))


def with_metadata(jobs: QuerySet[FineTuningJob], wanted: Mapping[str, str]) -> QuerySet[FineTuningJob]:
    """Returns the jobs whose metadata has all pairs of `wanted`."""
    for number, (key, value) in enumerate(wanted.items()):
        jobs = jobs.annotate(**{f"wanted_{number}": KeyTransform(key, "metadata")}).filter(
            **{f"wanted_{number}": value}
        )
    return jobs


def fine_tuning_job_get(organization: Organization, job_id: str) -> FineTuningJob:
    """Raises: ApiError: 404, also for another organization's job."""
    job = fine_tuning_jobs_list(organization).filter(pk=job_id).first()
    if job is None:
        message = f"Could not find fine tune: {job_id[:80]}"
        raise ApiError(404, message, "fine_tuning_job_not_found", "fine_tuning_job_id")
    return job


def trains_adapter(job: Job) -> bool:
    """Whether a job of the queue trains an adapter on labels. Other training jobs train a speculator."""
    return bool(job.params.get("method") == LORA)


def stage_job(pipeline: Pipeline) -> Job | None:
    """The job of the pipeline's current stage, or None if the stage has no job."""
    match Pipeline.Status(pipeline.status):
        case Pipeline.Status.DISTILLING:
            return pipeline.batch.job if pipeline.batch else None
        case Pipeline.Status.TRAINING:
            return pipeline.training_job
        case Pipeline.Status.EVALUATING:
            return pipeline.evaluation_job
    return None


def job_events_list(job: FineTuningJob, *types: str) -> QuerySet[JobEvent]:
    """Returns events of these types of the pipeline's current jobs, newest first.

    Checkpoint events are included only for the training job.
    """
    pipeline = job.pipeline
    if pipeline is None:
        return JobEvent.objects.filter(job_id=job.job_id, type__in=types).order_by("-pk")
    ids = [pipeline.training_job_id, pipeline.evaluation_job_id, pipeline.batch.job_id if pipeline.batch else None]
    events = JobEvent.objects.filter(job_id__in=[i for i in ids if i], type__in=types)
    return events.exclude(~Q(job_id=pipeline.training_job_id), type=CHECKPOINT).order_by("-pk")


def checkpoint_get(job: FineTuningJob, checkpoint_id: str) -> JobEvent:
    """Raises: ApiError: 404, the job has no such checkpoint."""
    number = checkpoint_id.removeprefix(CHECKPOINT_PREFIX)
    is_id = checkpoint_id.startswith(CHECKPOINT_PREFIX) and number.isascii() and number.isdigit() and len(number) < 19
    event = job_events_list(job, CHECKPOINT).filter(pk=int(number)).first() if is_id else None
    if event is None:
        message = f"The fine-tuning job has no checkpoint {checkpoint_id[:40]!r}."
        raise ApiError(404, message, "checkpoint_not_found", "checkpoint_id")
    return event
