"""The life cycle of a job. Only these services and those of `shards` write the job's row.

Every write of an attempt checks the claim's fence and raises LeaseLost if the fence is out of date (`state`).
`shards` commits results, and `failures` decides whether a failed job is tried again.
"""

# long: all writers of a job's row are in one file, so that their locks and fences can be compared

from collections.abc import Mapping
from typing import Any

from django.db import transaction
from django.db.models import Case, F, Value, When
from django.db.models.functions import Coalesce, Now

from control.billing.ledger.services import device_kind
from control.billing.usage.services import usage_attribute
from control.core.api.errors import over_limit
from control.core.database_clock import from_now
from control.core.settings.config import get_config
from control.queue.devices.leases import (
    device_facts,
    device_is_held,
    device_lease,
    device_suffices,
    devices_offered,
    visible_devices,
)
from control.queue.devices.models import Device
from control.queue.jobs.attempts import attempt_credit, attempt_ended, attempt_lost
from control.queue.jobs.config import get_job_config
from control.queue.jobs.failures import (
    MAX_LOST_ATTEMPTS,
    MAX_STALLED_ATTEMPTS,
    OF_SERVICE,
    Failure,
    backoff_seconds,
    final_failure,
    is_lost,
    with_half,
)
from control.queue.jobs.fair import NORMAL, may_run_another, next_job, priority_of, share_join
from control.queue.jobs.models import Job, Worker
from control.queue.jobs.origin import origin
from control.queue.jobs.protocol import LABELS_AND_HARDWARE, PROTOCOL, held_until, is_understood
from control.queue.jobs.selectors import FORGOTTEN_SECONDS, is_due, jobs_due
from control.queue.jobs.state import Claim, LeaseLost, claimed_job, event_add, transition, update_claimed
from control.queue.jobs.wake import is_backed_up, wake, wake_on_commit
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.quotas.quota import organization_lock, quota_of
from control.tenants.row_security.scope import Across, across_tenants

RECONCILE_LIMIT = 100
CLAIM_TRIES = 10
UNFINISHED = (Job.Status.QUEUED, Job.Status.RUNNING, Job.Status.PAUSED)  # customers may pause and cancel these


def job_submit(
    *,
    organization: Organization,
    kind: str,
    params: Mapping[str, Any],
    memory_needed: Mapping[str, int] | None = None,
    is_continuation: bool = False,
    priority: str = NORMAL,
    hardware: str = "",
    min_protocol: int = 0,
) -> Job:
    """Queues a job.

    Args:
        params: storage keys and ids, never paths of one machine.
        memory_needed, hardware, min_protocol: see the columns of `Job`.
        is_continuation: the job continues work that was accepted before, so the quota is not checked.
        priority: a name in `fair.LEVELS`; it orders the jobs of the organization only.

    Raises: ApiError: 429, the organization has reached its quota of queued jobs.
    """
    if hardware:
        min_protocol = max(min_protocol, LABELS_AND_HARDWARE)
    with transaction.atomic():
        organization_lock(organization.pk)
        if not is_continuation:
            queued_quota_check(organization.pk)
        share_join(organization.pk)
        kind = Job.Kind(kind)
        job = Job.objects.create(
            organization=organization,
            kind=kind,
            params=dict(params),
            memory_needed=memory_needed,
            hardware=hardware,
            priority=priority_of(kind, priority),
            min_protocol=min_protocol,
            not_before=held_until(min_protocol),
        )
        event_add(job_id=job.pk, type="queued", data=origin())
        usage_attribute(job_id=job.pk, organization_id=organization.pk)
        wake_on_commit(job.pk)
    return job


@audited("job.cancel")
def job_cancel(*, job: Job) -> bool:
    """Requests cancellation. The worker that runs the job stops it within seconds and keeps finished rows.

    Returns: False if the job had already ended or its cancellation had already been requested.
    """
    with transaction.atomic():
        requested = Job.objects.filter(pk=job.pk, status__in=UNFINISHED, cancel_requested_at=None).update(
            # a paused job is queued again, because a worker has to claim it and assemble its finished rows
            status=Case(When(status=Job.Status.PAUSED, then=Value(Job.Status.QUEUED.value)), default=F("status")),
            paused=None,
            cancel_requested_at=Now(),
            not_before=None,
        )
        if requested:
            event_add(job_id=job.pk, type="cancel_requested", data={})
            wake_on_commit(job.pk)
    return bool(requested)


def queued_quota_check(organization_id: str) -> None:
    """Raises: ApiError: 429."""
    limit = quota_of(organization_id).queued_jobs
    if Job.objects.filter(organization_id=organization_id, status=Job.Status.QUEUED).count() >= limit:
        message = f"Your organization has {limit:,} queued jobs, which is its limit. Try again when some have started."
        raise over_limit(message, "queued_jobs_quota_exceeded", retry_after_seconds=60)


def job_claim_next(*, worker: str) -> Claim | None:
    """Claims the next job. Returns None if no job is due, or if other workers were faster in `CLAIM_TRIES` tries."""
    for _ in range(CLAIM_TRIES):
        with across_tenants(Across.CLAIM), transaction.atomic():
            offer = devices_offered()
            candidate = next_job(offer.fits())
            if candidate is None:
                return None
            job, limit = candidate.job, candidate.limit
            device = offer.choose(job) if job.cancel_requested_at is None else None
            is_allowed = limit is None or may_run_another(job.organization_id, limit)
            is_allowed = is_allowed and (device is None or offer.allows(job))
            claim = _claim(job, worker, device) if is_allowed else None
        if claim is not None:
            return claim
    return None


def job_claim(*, job_id: str, worker: str) -> Claim | None:
    """Claims this job to end it, without a device. Returns None if it is not due or another worker has claimed it."""
    with across_tenants(Across.CLAIM), transaction.atomic():
        job = Job.objects.select_for_update().filter(is_understood(), pk=job_id).first()
        return None if job is None else _claim(job, worker)


def _claim(job: Job, worker: str, device: Device | None = None) -> Claim | None:
    """Claims with one UPDATE, so that of two racing workers only one gets the job.

    Args:
        job: the row as it was before the claim. On PostgreSQL it is locked; on SQLite no other transaction can write.
        device: the free device that the job gets; None: it needs none.
    """
    # An abandoned job has lost its worker. Its last attempt counts as lost instead of stalled, unless it made progress.
    is_abandoned = job.status == Job.Status.RUNNING
    stalled = max(1, job.stalled_attempts) if is_abandoned else job.stalled_attempts + 1
    lost = job.lost_attempts + (is_abandoned and job.stalled_attempts > 0)
    claimed = (
        Job.objects.filter(pk=job.pk)
        .filter(is_due())
        .update(
            status=Job.Status.RUNNING,
            fence=F("fence") + 1,
            attempt=F("attempt") + 1,
            stalled_attempts=stalled,  # a committed shard or checkpoint resets both counts
            lost_attempts=lost,
            lease_until=from_now(get_config().lease_seconds),
            worker=worker,
            not_before=None,
            claimed_at=Now(),
            progress_at=Now(),
            started_at=Coalesce("started_at", Now()),
        )
    )
    if not claimed:
        return None
    attempt_lost(job)
    fence = job.fence + 1
    data: dict[str, Any] = {"fence": fence, "worker": worker, "device": device_kind()}
    if device is not None:
        device_lease(device, job_id=job.pk, fence=fence)
        data |= device_facts(device)
    event_add(job_id=job.pk, type="claimed", data=data)
    return Claim(
        job_id=job.pk,
        organization_id=job.organization_id,
        fence=fence,
        worker=worker,
        is_exhausted=stalled > MAX_STALLED_ATTEMPTS or lost >= MAX_LOST_ATTEMPTS,
        visible_devices=None if device is None else visible_devices(device),
    )


def job_renew(*, claim: Claim) -> bool:
    """Renews the lease. Returns: whether cancellation of the job has been requested. Raises: LeaseLost."""
    with transaction.atomic():
        update_claimed(claim, lease_until=from_now(get_config().lease_seconds))
        if claim.visible_devices is not None and not device_is_held(job_id=claim.job_id, fence=claim.fence):
            raise LeaseLost(f"the device of job {claim.job_id} has passed to another job")
        return claimed_job(claim).filter(cancel_requested_at__isnull=False).exists()


def job_set_memory(*, claim: Claim, memory_needed: Mapping[str, int]) -> bool:
    """Records the memory that a claimed job needs. Returns: whether its device has this memory. Raises: LeaseLost."""
    update_claimed(claim, memory_needed=dict(memory_needed))
    return claim.visible_devices is None or device_suffices(memory_needed, job_id=claim.job_id, fence=claim.fence)


def job_progress(*, claim: Claim, done: int, total: int, unit: str) -> None:
    """Records the progress that the child reports. Only commits reset `stalled_attempts`. Raises: LeaseLost."""
    update_claimed(claim, progress_done=done, progress_total=total, progress_unit=unit, progress_at=Now())


def job_metrics(*, claim: Claim, metrics: Mapping[str, float]) -> None:
    """Records the child's latest metrics. Raises: LeaseLost."""
    update_claimed(claim, metrics=dict(metrics), progress_at=Now())


def job_commit_checkpoint(*, claim: Claim, storage_prefix: str, step: int) -> None:
    """Records an uploaded checkpoint; later attempts resume from it. Raises: LeaseLost."""
    with transaction.atomic():
        update_claimed(claim, checkpoint_key=storage_prefix, stalled_attempts=0, lost_attempts=0, progress_at=Now())
        metrics = claimed_job(claim).values_list("metrics", flat=True).get()
        data = {"fence": claim.fence, "step": step, "metrics": metrics}
        event_add(job_id=claim.job_id, type="checkpoint_committed", data=data)


def job_succeed(*, claim: Claim, result: Mapping[str, Any]) -> None:
    """Raises: LeaseLost."""
    transition(
        claim,
        Job.Status.SUCCEEDED,
        event="succeeded",
        data={},
        result=dict(result),
        error=None,
        finished_at=Now(),
    )


def job_end_cancelled(*, claim: Claim) -> None:
    """Raises: LeaseLost."""
    transition(claim, Job.Status.CANCELLED, event="cancelled", data={}, finished_at=Now())


def job_final_failure(*, job: Job, failure: Failure) -> Failure | None:
    """Returns the failure with which `job_fail` would end the job, or None if the job would be tried again."""
    earlier = job.failures.get(failure.failure_class.value, 0)
    return final_failure(
        failure, earlier=earlier, stalled_attempts=job.stalled_attempts, lost_attempts=job.lost_attempts
    )


def job_fail(*, claim: Claim, failure: Failure) -> bool:
    """Ends a failed attempt and, unless the job is tried again, the job. Credits failures that the service caused.

    Returns: whether the job ended. Raises: LeaseLost.
    """
    with transaction.atomic():
        update_claimed(claim, progress_at=Now())  # locks the row before it is read
        job = Job.objects.get(pk=claim.job_id)
        final = job_final_failure(job=job, failure=failure)
        name = failure.failure_class.value
        failures = {**job.failures, name: job.failures.get(name, 0) + 1}
        if final is not None:
            transition(
                claim,
                Job.Status.FAILED,
                event="failed",
                data=final.as_error(),
                error=final.as_error(),
                failures=failures,
                finished_at=Now(),
            )
        else:
            _try_again(claim, job, failure, failures)
        if failure.failure_class in OF_SERVICE:
            attempt_credit(job, fence=claim.fence)
    return final is not None


def _try_again(claim: Claim, job: Job, failure: Failure, failures: Mapping[str, int]) -> None:
    """Queues the job again, after a pause. Args: failures: the new value of `Job.failures`."""
    config = get_job_config()
    lost = is_lost(failure, stalled_attempts=job.stalled_attempts)
    num_in_vain = job.stalled_attempts + job.lost_attempts
    delay = backoff_seconds(num_in_vain, first=config.backoff_seconds, cap=config.backoff_cap_seconds)
    transition(
        claim,
        Job.Status.QUEUED,
        event="retried",
        data={**failure.as_error(), "pause_seconds": round(delay, 3)},
        failures=dict(failures),
        stalled_attempts=job.stalled_attempts - lost,
        lost_attempts=job.lost_attempts + lost,
        params=with_half(job.params, failure.num_rows),
        # a requested cancellation does not wait for the back-off
        not_before=None if job.cancel_requested_at else held_until(job.min_protocol) or from_now(delay),
    )


def job_release(*, claim: Claim) -> None:
    """Queues the job again, because its worker stops. The attempt does not count as stalled. Raises: LeaseLost."""
    with transaction.atomic():
        min_protocol = claimed_job(claim).values_list("min_protocol", flat=True).first() or 0
        transition(
            claim,
            Job.Status.QUEUED,
            event="released",
            data={},
            not_before=held_until(min_protocol),
            stalled_attempts=_stalled_before(),
        )
        wake_on_commit(claim.job_id)


def job_pause(*, claim: Claim, why: Mapping[str, Any]) -> bool:
    """Pauses a claimed job until `job_resume` is called. Committed shards are kept.

    Returns: False if cancellation was requested; the job then stays as it is. Raises: LeaseLost.
    """
    data = dict(why)
    with transaction.atomic():
        if job_renew(claim=claim):
            return False
        transition(
            claim,
            Job.Status.PAUSED,
            event="paused",
            data=data,
            paused=data,
            stalled_attempts=_stalled_before(),
        )
    return True


def job_pause_on_request(*, job: Job, why: Mapping[str, Any]) -> bool:
    """Pauses a job at its customer's request. A running attempt loses its lease and stops; its commits are kept.

    If the job is paused already, the new reason replaces the earlier one.
    Returns: False if the job has ended or its cancellation was requested; the job then stays as it is.
    """
    data = dict(why)
    with transaction.atomic():
        pausable = Job.objects.select_for_update().filter(pk=job.pk, status__in=UNFINISHED, cancel_requested_at=None)
        row = pausable.annotate(now=Now()).first()
        if row is None:
            return False
        if row.paused is not None and row.paused["code"] == data["code"]:
            return True
        if row.lease_until is not None:  # an attempt is running, or its lease has expired
            if row.lease_until > row.now:
                attempt_ended(row, fence=row.fence, at=row.now)
            else:
                attempt_lost(row)
            Job.objects.filter(pk=row.pk).update(stalled_attempts=_stalled_before())
        Job.objects.filter(pk=row.pk).update(status=Job.Status.PAUSED, paused=data, lease_until=None)
        event_add(job_id=row.pk, type="paused", data=data)
    return True


def job_resume(*, job: Job, code: str) -> bool:
    """Queues a paused job again. Returns: False if it is not paused, or paused for another reason than `code`."""
    with transaction.atomic():
        organization_lock(job.organization_id)
        share_join(job.organization_id)
        paused = Job.objects.filter(pk=job.pk, status=Job.Status.PAUSED, paused__code=code)
        resumed = paused.update(status=Job.Status.QUEUED, paused=None, not_before=held_until(job.min_protocol))
        if resumed:
            event_add(job_id=job.pk, type="resumed", data={})
            wake_on_commit(job.pk)
    return bool(resumed)


def _stalled_before() -> Case:
    """Returns `stalled_attempts` without the attempt that ends now, which `_claim` counted as stalled.

    Zero stays zero, because a commit has reset the count.
    """
    return Case(When(stalled_attempts__gt=0, then=F("stalled_attempts") - 1), default=Value(0))


def worker_beat(*, worker: str, role: str) -> None:
    """Records a heartbeat. A worker's first heartbeat also deletes the rows of workers that sent none for a day."""
    if not Worker.objects.filter(pk=worker).update(heartbeat_at=Now()):
        Worker.objects.filter(heartbeat_at__lt=from_now(-FORGOTTEN_SECONDS)).delete()
        Worker.objects.create(pk=worker, role=role, started_at=Now(), heartbeat_at=Now(), protocol=PROTOCOL)


def worker_leave(*, worker: str) -> None:
    Worker.objects.filter(pk=worker).delete()


def reconcile() -> int:
    """Repeats the wake-ups of due jobs, because messages can be lost. Several processes may run it at the same time.

    Returns: the number of due jobs.
    """
    ids = list(jobs_due().values_list("pk", flat=True)[:RECONCILE_LIMIT])
    if ids and not is_backed_up():
        for job_id in ids:
            wake(job_id)
    return len(ids)
