"""Pauses batches that reach a spend cap, and resumes them.

The cost of a shard counts as soon as the shard is committed; a batch that has then reached a cap is paused. A paused
batch is queued again when the cap is raised or removed, when the next month begins, or when the batch's completion
window ends. Shards that a pause interrupts are not charged, and they are computed again later.
"""

from collections.abc import Collection
from typing import Any

from django.db import transaction
from django.db.models import QuerySet, Sum
from django.db.models.functions import Now

from control.billing.spending.quoted import quoted_device_nanousd, quoted_uses
from control.billing.spending.selectors import REACHED, CapReached, cap_reached, format_usd
from control.billing.usage.services import caller_of_job
from control.queue.jobs.attempts import running_nanousd
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_pause, job_resume
from control.queue.jobs.state import Claim
from control.tenants.events.services import event_record
from control.tenants.row_security.each import each_as_tenant
from control.workflows.batches.event_types import BATCH_PAUSED, BATCH_RESUMED
from control.workflows.batches.models import Batch

REVIEW_LIMIT = 100


def quotes_spent_nanousd(quote_ids: Collection[str]) -> dict[str, int]:
    """Returns the cost so far of each quote: the tokens of its batches, and the device time of its pipelines.

    The device time includes running attempts. They are read before the ledger, so an attempt that ends between the two
    reads is counted twice. In the other order, it would not be counted at all.
    """
    spent = dict.fromkeys(quote_ids, 0)
    uses = quoted_uses(quote_ids)
    running = running_nanousd(Job.objects.filter(pk__in=uses.values("object_id")))
    for object_id, quote_id in uses.filter(pk__in=running).values_list("object_id", "quote_id"):
        spent[quote_id] += running[object_id]
    for quote_id, cost in quoted_device_nanousd(quote_ids).items():
        spent[quote_id] += cost
    batches = Batch.objects.filter(quote_id__in=quote_ids).order_by()
    for quote_id, cost in batches.values("quote_id").annotate(sum=Sum("cost_nanousd")).values_list("quote_id", "sum"):
        spent[quote_id] += cost
    return spent


def quote_spent_nanousd(quote_id: str) -> int:
    return quotes_spent_nanousd([quote_id])[quote_id]


def quote_cap_reached(quote_id: str | None) -> CapReached | None:
    """Returns the cap of the quote if it is reached. Reads it, because it may have changed since the row was read."""
    if quote_id is None:
        return None
    quotes: Any = Batch._meta.get_field("quote").related_model  # the module of `Quote` imports this one
    cap = quotes.objects.filter(pk=quote_id).values_list("cap_nanousd", flat=True).first()
    if cap is None or (spent := quote_spent_nanousd(quote_id)) < cap:
        return None
    message = f"{format_usd(spent)} of the quote's cap of {format_usd(cap)} have been spent."
    return CapReached(cap_id=quote_id, message=message)


def batch_cap_reached(batch: Batch) -> CapReached | None:
    """Returns the cap of the quote, project or organization that the batch has reached; None if it has reached none."""
    reached = quote_cap_reached(batch.quote_id)
    return reached or cap_reached(caller_of_job(job_id=batch.job_id, organization_id=batch.organization_id))


def batches_paused() -> QuerySet[Batch]:
    """Batches that were paused by a spend cap, not by the customer."""
    paused = Batch.objects.filter(job__status="paused", job__paused__code=REACHED)
    return paused.select_related("job").order_by("pk")


@transaction.atomic
def batch_pause(*, batch: Batch, claim: Claim, reached: CapReached) -> bool:
    """Pauses a batch that has reached a cap. Returns False if it is being cancelled instead. Raises: LeaseLost."""
    if not job_pause(claim=claim, why=reached.as_reason()):
        return False
    event_record(
        organization_id=batch.organization_id, project_id=batch.project_id, type=BATCH_PAUSED, object_id=batch.pk
    )
    return True


def batches_review() -> None:
    """Resumes paused batches that are below their caps again or whose completion window has ended.

    Workers call this regularly, so a batch is resumed even if it was paused after the signal that its cap was lifted.
    """
    paused = batches_paused()[:REVIEW_LIMIT]
    each_as_tenant(paused, _review, failure="could not review a paused batch", name="batch_id")


def batches_resume(organization_id: str, **_: Any) -> None:
    """Receiver of `spend_cap_lifted`: resumes the organization's paused batches that are below their caps again."""
    for batch in batches_paused().filter(organization_id=organization_id):
        _review(batch)


def _review(batch: Batch) -> None:
    # This function and the worker that claims the job both use the database's clock. With two different clocks, this
    # function could resume the batch and the worker could pause it, again and again.
    is_overdue = Batch.objects.filter(pk=batch.pk, expires_at__lte=Now()).exists()
    if not is_overdue and batch_cap_reached(batch) is not None:
        return
    with transaction.atomic():
        if job_resume(job=batch.job, code=REACHED):
            event_record(
                organization_id=batch.organization_id,
                project_id=batch.project_id,
                type=BATCH_RESUMED,
                object_id=batch.pk,
            )
