"""Readers of batches."""

from django.db.models import OuterRef, QuerySet, Subquery, Sum
from django.db.models.functions import Coalesce

from control.accounts.models import Organization
from control.api.errors import ApiError
from control.batches.models import Batch
from control.jobs.models import JobShard


def batches_list(organization: Organization) -> QuerySet[Batch]:
    """With what `batch_body` shows of batches that are still running: the sums over finished shards."""
    shards = JobShard.objects.filter(job=OuterRef("job")).order_by().values("job")
    return (
        Batch.objects.filter(organization=organization)
        .select_related("base_model")
        .annotate(
            shards_completed=Coalesce(Subquery(shards.annotate(n=Sum("completed")).values("n")), 0),
            shards_failed=Coalesce(Subquery(shards.annotate(n=Sum("failed")).values("n")), 0),
        )
    )


def batch_get(organization: Organization, batch_id: str) -> Batch:
    """Raises: ApiError: 404, also for another organization's batch."""
    batch = batches_list(organization).filter(pk=batch_id).first()
    if batch is None:
        raise ApiError(404, f"No batch found with id '{batch_id[:80]}'.", "batch_not_found", "batch_id")
    return batch
