"""Queries for evaluations, and for the worker time that creating a speculator took."""

from collections.abc import Iterable

from django.db.models import QuerySet

from control.billing.ledger.selectors import job_time_column
from control.core.api.errors import ApiError
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job, JobEvent
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.evaluations.models import Evaluation
from control.workflows.pipelines.models import Pipeline

# Events that begin or end an attempt. A claim also ends the previous attempt if that attempt's lease expired.
_ATTEMPT_EVENTS = frozenset({"claimed", "retried", "released", "paused", "succeeded", "failed", "cancelled"})


def evaluations_list(organization: Organization) -> QuerySet[Evaluation]:
    """Evaluations with the cost of their device time as `device_nanousd`."""
    evaluations = Evaluation.objects.filter(visible(organization)).annotate(device_nanousd=job_time_column("job_id"))
    return evaluations.select_related("speculator__base_model", "job")


def evaluation_get(organization: Organization, evaluation_id: str) -> Evaluation:
    """Raises: ApiError: 404, also for another organization's evaluation."""
    evaluation = evaluations_list(organization).filter(pk=evaluation_id).first()
    if evaluation is None:
        raise ApiError(404, f"No such evaluation: {evaluation_id[:80]!r}.", "evaluation_not_found", "evaluation_id")
    return evaluation


def pipeline_of(speculator: Speculator) -> Pipeline | None:
    """The pipeline that trained the speculator, or None if it was imported."""
    return (
        Pipeline.objects.filter(speculator=speculator)
        .select_related("batch__job", "training_job", "prompts_file", "held_out_file")
        .first()
    )


def creation_seconds(pipeline: Pipeline) -> float:
    """Returns the worker time for the answers to the prompts and for the training, including failed attempts."""
    answering = None if pipeline.batch is None else pipeline.batch.job
    return sum((worker_seconds(job) for job in (answering, pipeline.training_job) if job is not None), start=0.0)


def worker_seconds(job: Job) -> float:
    """Sums over the job's attempts the time from the claim to the end of the attempt."""
    seconds, claimed = 0.0, None
    for event in _attempt_events(job):
        if claimed is not None:
            seconds += (event.created_at - claimed.created_at).total_seconds()
        claimed = event if event.type == "claimed" else None
    return seconds


def _attempt_events(job: Job) -> Iterable[JobEvent]:
    return JobEvent.objects.filter(job=job, type__in=_ATTEMPT_EVENTS).order_by("seq").only("type", "created_at")
