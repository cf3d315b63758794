"""Queries for batches."""

from django.db.models import QuerySet
from django.db.models.functions import Now

from control.core.api.errors import ApiError
from control.data.files.selectors import files_list
from control.queue.jobs.models import Job
from control.queue.jobs.selectors import is_due
from control.tenants.accounts.models import Organization
from control.tenants.accounts.projects import visible
from control.workflows.batches.estimates import with_progress
from control.workflows.batches.models import Batch
from control.workflows.batches.state import TERMINAL, Status


def batches_list(organization: Organization) -> QuerySet[Batch]:
    """Batches with the progress that is shown while they run (`estimates`)."""
    return with_progress(Batch.objects.filter(visible(organization)).select_related("base_model", "job"))


def batch_get(organization: Organization, batch_id: str) -> Batch:
    """Raises: ApiError: 404, also for another organization's batch."""
    batch = batches_list(organization).filter(pk=batch_id).first()
    if batch is None:
        raise ApiError(404, f"No batch found with id '{batch_id[:80]}'.", "batch_not_found", "batch_id")
    return batch


def require_results(batch: Batch) -> None:
    """Checks the result files of a batch that has ended. Raises: ApiError: 404, one is deleted or has expired."""
    ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
    if not ids or files_list(batch.organization).filter(pk__in=ids).count() < len(ids):
        raise results_deleted(batch)


def results_deleted(batch: Batch) -> ApiError:
    return ApiError(404, f"The results of batch {batch.pk} have been deleted.", "results_deleted", "batch_id")


def batches_overdue() -> QuerySet[Batch]:
    """Batches past their completion window whose job is unclaimed. A worker must assemble their partial results."""
    waiting = (Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING)
    return Batch.objects.filter(
        status__in=waiting, expires_at__lte=Now(), job__in=Job.objects.filter(is_due())
    ).order_by("expires_at")


def batches_untidy() -> QuerySet[Batch]:
    """Batches that have ended but still have the working files of their workers in storage."""
    return Batch.objects.filter(status__in=TERMINAL, has_working_files=True, job__finished_at__isnull=False)


def batches_with_stray_tokens() -> QuerySet[Batch]:
    """Batches whose output file is deleted or expired but whose token ids are still stored."""
    return Batch.objects.filter(tokens_key__gt="", output_file__deleted_at__isnull=False)
