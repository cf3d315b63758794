"""Records the device time of an attempt when it ends: in the usage ledger, in the worker time that `fair` compares, and
as the time for which its device was held.

An attempt that failed for reasons of the service (its failure class is `infra` or `bug`, or its machine was lost) is
credited in the same transaction. A stopped, paused or cancelled attempt is not.

A killed worker cannot report when it was killed. Its attempt is assumed to have ended at the last renewal of its lease.
The ledger therefore misses at most one interval between renewals (`renew_seconds`), and never contains time after the
worker's death.
"""

import datetime as dt
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from control.billing.ledger.models import CreditReason, Subject
from control.billing.ledger.services import device_kind
from control.billing.usage.credits import credit_add
from control.billing.usage.device_time import device_time_add, device_time_nanousd
from control.billing.usage.services import caller_of_job
from control.core.settings.config import get_config
from control.queue.devices.holds import job_lease_end
from control.queue.jobs.fair import share_charge
from control.queue.jobs.models import Job, JobEvent

_SUBJECTS = {
    Job.Kind.BATCH: Subject.BATCH_TIME,
    Job.Kind.TRAINING: Subject.TRAINING_TIME,
    Job.Kind.EVALUATION: Subject.EVALUATION_TIME,
}  # the check of a model uses no device


def attempt_ended(job: Job, *, fence: int, at: dt.datetime) -> None:
    """Records an attempt whose worker held the lease until `at`. Call this in the transaction that ends the attempt.

    Args: job: the row with the attempt's `claimed_at`.
    """
    share_charge(job.organization_id, since=job.claimed_at, until=at)
    job_lease_end(job_id=job.pk, fence=fence, until=at)
    _write_ledger(job, fence=fence, until=at)


def attempt_lost(job: Job) -> None:
    """Records and credits an attempt whose lease has expired. Call this when its job is claimed or paused.

    Args: job: the row before the claim or pause. Nothing is recorded if no attempt was running.
    """
    if job.lease_until is None:
        return
    share_charge(job.organization_id, since=job.claimed_at, until=job.lease_until)
    job_lease_end(job_id=job.pk, fence=job.fence, until=job.lease_until)
    last_renewal = job.lease_until - dt.timedelta(seconds=get_config().lease_seconds)
    _write_ledger(job, fence=job.fence, until=last_renewal)
    attempt_credit(job, fence=job.fence)


def attempt_credit(job: Job, *, fence: int) -> None:
    """Credits an attempt that failed for reasons of the service, as far as the operators' settings say.

    Call this in the transaction that ends the attempt, after its time was recorded.
    """
    subject, percent = _SUBJECTS.get(Job.Kind(job.kind)), get_config().credit_failed_percent
    if subject is not None and percent:
        credit_add(
            subject=subject,
            object_id=job.pk,
            sequence=str(fence),
            percent=percent,
            reason=CreditReason.ATTEMPT_FAILED,
        )


def running_nanousd(jobs: QuerySet[Job]) -> dict[str, int]:
    """Returns, by job, the cost so far of its running attempt, which the ledger does not contain yet."""
    running, costs = jobs.filter(status=Job.Status.RUNNING), {}
    for job in running.annotate(now=Now()).only("kind", "fence", "claimed_at", "lease_until"):
        if Job.Kind(job.kind) in _SUBJECTS and job.claimed_at is not None and job.lease_until is not None:
            until = min(job.now, job.lease_until)
            device = _device_of(job.pk, job.fence)
            costs[job.pk] = device_time_nanousd(since=job.claimed_at, until=until, **device)
    return costs


def _write_ledger(job: Job, *, fence: int, until: dt.datetime) -> None:
    subject = _SUBJECTS.get(Job.Kind(job.kind))
    if subject is None or job.claimed_at is None:
        return
    device_time_add(
        caller=caller_of_job(job_id=job.pk, organization_id=job.organization_id),
        subject=subject,
        object_id=job.pk,
        sequence=str(fence),
        since=job.claimed_at,
        until=until,
        **_device_of(job.pk, fence),
    )


def _device_of(job_id: str, fence: int) -> dict[str, Any]:
    """Returns the kind of the attempt's device, and its price if one is stated for this device."""
    claimed = JobEvent.objects.filter(job_id=job_id, type="claimed", data__fence=fence)
    data = claimed.values_list("data", flat=True).first() or {}
    # claims of earlier releases do not name the device
    return {"device_kind": data.get("device") or device_kind(), "hour_nanousd": data.get("hour_nanousd")}
