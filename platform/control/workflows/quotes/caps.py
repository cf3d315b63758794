"""Pauses the training and evaluation jobs of pipelines at the cap of their quote, and resumes them.

The cap is checked at each committed checkpoint: in a training after every `evaluate_every` steps, in an evaluation
after every concurrency. A job is also checked before its child process starts. A paused job continues from its last
checkpoint when the cap is raised or removed. `batches.caps` does the same for batches, shard by shard.
"""

from django.db.models import QuerySet

from control.billing.spending.quoted import quote_of
from control.billing.spending.selectors import REACHED, CapReached
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_resume
from control.tenants.row_security.each import each_as_tenant
from control.workflows.batches.caps import REVIEW_LIMIT, quote_cap_reached
from control.workflows.quotes.models import Quote

_KINDS = (Job.Kind.TRAINING, Job.Kind.EVALUATION)


def job_cap_reached(job: Job) -> CapReached | None:
    """Returns the cap of the job's quote if it is reached; None: it is not, or the job has no quote."""
    return quote_cap_reached(quote_of(job.pk))


def jobs_paused() -> QuerySet[Job]:
    """Training and evaluation jobs that were paused by the cap of a quote, not by the customer."""
    return Job.objects.filter(status=Job.Status.PAUSED, paused__code=REACHED, kind__in=_KINDS)


def jobs_review() -> None:
    """Resumes paused jobs that are below the cap again.

    Workers call this regularly, so a job is resumed even if it was paused just after the cap was raised. The order is
    random, so that every paused job is reviewed, however many stay paused.
    """
    paused = jobs_paused().order_by("?")[:REVIEW_LIMIT]
    each_as_tenant(paused, _review, failure="could not review a paused job", name="job_id")


def jobs_resume(quote: Quote) -> None:
    """Resumes the paused jobs of the quote if they are below its cap again."""
    for job in jobs_paused().filter(organization_id=quote.organization_id, paused__cap_id=quote.pk):
        _review(job)


def _review(job: Job) -> None:
    if job_cap_reached(job) is None:
        job_resume(job=job, code=REACHED)
