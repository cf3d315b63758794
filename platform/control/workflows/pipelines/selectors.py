"""Queries for pipelines. Queries on behalf of a customer take the organization as their first argument."""

from django.db.models import Prefetch, Q, QuerySet
from django.db.models.expressions import Combinable

from control.billing.ledger.selectors import job_time_column
from control.core.api.errors import ApiError
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.pipelines.models import Pipeline, PipelineEvent
from control.workflows.pipelines.state import ACTIVE

_RELATED = ("base_model", "batch__job", "training_job", "evaluation_job", "speculator", "deployment", "quote")


def pipelines_list(organization: Organization) -> QuerySet[Pipeline]:
    """Pipelines with all that the API shows. `device_nanousd` is the cost of the device time of their jobs."""
    events = Prefetch("events", queryset=PipelineEvent.objects.order_by("id"))
    pipelines = Pipeline.objects.filter(visible(organization)).annotate(device_nanousd=device_time_column())
    return pipelines.select_related(*_RELATED).prefetch_related(events)


def device_time_column(prefix: str = "") -> Combinable:
    """Returns, for a query's `annotate`, the cost of the device time of a pipeline's three jobs.

    Args: prefix: the path from the query's rows to the pipeline, such as `pipeline__`.
    """
    batch, training, evaluation = (
        job_time_column(f"{prefix}{name}") for name in ("batch__job_id", "training_job_id", "evaluation_job_id")
    )
    return batch + training + evaluation


def pipeline_get(organization: Organization, pipeline_id: str) -> Pipeline:
    """Raises: ApiError: 404, also for another organization's pipeline."""
    pipeline = pipelines_list(organization).filter(pk=pipeline_id).first()
    if pipeline is None:
        raise ApiError(404, f"No pipeline with id {pipeline_id[:80]!r}.", "pipeline_not_found", "pipeline_id")
    return pipeline


def pipelines_active() -> QuerySet[Pipeline]:
    return Pipeline.objects.filter(status__in=ACTIVE).order_by("pk")


def pipelines_waiting_for_job(job_id: str) -> QuerySet[Pipeline]:
    of_job = Q(batch__job_id=job_id) | Q(training_job_id=job_id) | Q(evaluation_job_id=job_id)
    return pipelines_active().filter(of_job)


def pipeline_fresh(pipeline: Pipeline) -> Pipeline:
    """Reads the pipeline and its related rows again."""
    return Pipeline.objects.select_related("organization", *_RELATED).get(pk=pipeline.pk)
