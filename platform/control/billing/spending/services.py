"""Writers of caps, and of the pauses that follow from them.

    a shard is committed and its cost counted ──> a cap is reached ──> paused
    the cap is raised or removed, a month begins, the batch's window ends ──> queued again

Work that a pause cuts off was not committed: it is neither counted nor lost, and done again later.
"""

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from control.billing.spending.models import SpendCap
from control.billing.spending.selectors import REACHED, Reached, batch_cap_reached, batches_paused
from control.core.api.errors import ApiError
from control.queue.jobs.services import job_pause, job_resume
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import Organization, Project
from control.tenants.audit.record import audited
from control.tenants.events.services import event_record
from control.tenants.events.types import BATCH_PAUSED, BATCH_RESUMED
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.models import Batch
from control.workflows.quotes.models import Quote

REVIEW_LIMIT = 100


@audited("spend_cap.create")
def spend_cap_create(*, organization: Organization, project: Project | None, nanousd: int) -> SpendCap:
    """Jobs that run are paused at their next shard. Raises: ApiError: 409, there is one."""
    try:
        with transaction.atomic():
            return SpendCap.objects.create(organization=organization, project=project, nanousd=nanousd)
    except IntegrityError as error:
        whose = "Your organization" if project is None else f"The project {project.pk}"
        raise ApiError(409, f"{whose} has a spend cap: change that one.", "spend_cap_exists", "project_id") from error


@audited("spend_cap.update")
@transaction.atomic
def spend_cap_update(*, cap: SpendCap, nanousd: int) -> SpendCap:
    """Effects: jobs that the new cap lets go on are queued again."""
    SpendCap.objects.filter(pk=cap.pk).update(nanousd=nanousd)
    cap.refresh_from_db()
    _resume_allowed(cap.organization_id)
    return cap


@audited("spend_cap.delete")
@transaction.atomic
def spend_cap_delete(*, cap: SpendCap) -> None:
    """Effects: as of a raised one."""
    organization_id = cap.organization_id
    cap.delete()
    _resume_allowed(organization_id)


@audited("quote.update")
@transaction.atomic
def quote_cap_set(*, quote: Quote, nanousd: int | None) -> Quote:
    """None: no cap. Effects: as of a raised one."""
    Quote.objects.filter(pk=quote.pk).update(cap_nanousd=nanousd)
    quote.refresh_from_db()
    _resume_allowed(quote.organization_id)
    return quote


@transaction.atomic
def batch_pause(*, batch: Batch, claim: Claim, reached: Reached) -> bool:
    """Returns: False: it is being cancelled instead. Raises: LeaseLost."""
    if not job_pause(claim=claim, why=reached.as_reason()):
        return False
    event_record(organization_id=batch.organization_id, type=BATCH_PAUSED, object_id=batch.pk)
    return True


def batches_review() -> None:
    """Resumes what may go on, or has only to be ended. A pause that raced with a raised cap is found here too."""
    for batch in batches_paused()[:REVIEW_LIMIT]:
        with as_tenant(batch.organization_id):
            _review(batch)


def _resume_allowed(organization_id: str) -> None:
    for batch in batches_paused().filter(organization_id=organization_id):
        _review(batch)


def _review(batch: Batch) -> None:
    # by the database's clock, as whoever takes the job asks: else the two would resume and pause in turn
    is_overdue = Batch.objects.filter(pk=batch.pk, expires_at__lte=Now()).exists()
    if not is_overdue and batch_cap_reached(batch) is not None:
        return
    with transaction.atomic():
        if job_resume(job=batch.job, code=REACHED):
            event_record(organization_id=batch.organization_id, type=BATCH_RESUMED, object_id=batch.pk)
