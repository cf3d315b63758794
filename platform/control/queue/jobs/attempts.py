"""Records the device time of an attempt when it ends: in the usage ledger, in the worker time that `fair` compares, and
as the time for which its device was held.

A killed worker cannot report when it was killed. Its attempt is assumed to have ended at the last renewal of its lease.
The ledger therefore misses at most one interval between renewals (`renew_seconds`), and never contains time after the
worker's death.
"""

import datetime as dt

from control.billing.ledger.models import Subject
from control.billing.ledger.services import device_kind
from control.billing.usage.device_time import device_time_add
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
    """Records an attempt whose lease has expired. Call this when its job is claimed or paused.

    Args: job: the row before the claim or pause. Nothing is recorded if no attempt was running.
    """
    if job.lease_until is None:
        return
    share_charge(job.organization_id, since=job.claimed_at, until=job.lease_until)
    job_lease_end(job_id=job.pk, fence=job.fence, until=job.lease_until)
    last_renewal = job.lease_until - dt.timedelta(seconds=get_config().lease_seconds)
    _write_ledger(job, fence=job.fence, until=last_renewal)


def _write_ledger(job: Job, *, fence: int, until: dt.datetime) -> None:
    subject = _SUBJECTS.get(Job.Kind(job.kind))
    if subject is None or job.claimed_at is None:
        return
    claimed = JobEvent.objects.filter(job_id=job.pk, type="claimed", data__fence=fence)
    data = claimed.values_list("data", flat=True).first() or {}
    device_time_add(
        caller=caller_of_job(job_id=job.pk, organization_id=job.organization_id),
        subject=subject,
        object_id=job.pk,
        sequence=str(fence),
        device_kind=data.get("device") or device_kind(),  # claims of earlier releases do not name the device
        hour_nanousd=data.get("hour_nanousd"),
        since=job.claimed_at,
        until=until,
    )
