"""The states of a job, and the only way to change them: a compare-and-swap and an event in one transaction.

    queued ──claim──> running ──> succeeded
      ^                  │
      ├─ retry, release ─┼──────> failed
      │                  ├──────> cancelled
      └── resume, cancel ┴──────> paused <── paused by the customer ── queued

A queued job is claimed before it is cancelled or failed, because its partial results are assembled under a lease.

Transactions lock rows in one order, so that they cannot deadlock: organization, pipeline, job (`job_lock`), shards, and
last the batch or other row that the job works for. Only a claim, which skips locked jobs, locks a job before its
organization.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import transaction
from django.db.models import Max, QuerySet
from django.db.models.functions import Now

from control.queue.jobs.attempts import attempt_ended
from control.queue.jobs.event_types import EVALUATION_EVENTS, FINE_TUNING_EVENTS, JOB_EVENTS
from control.queue.jobs.models import Job, JobEvent
from control.tenants.events.services import event_record

LEGAL_MOVES: Mapping[Job.Status, frozenset[Job.Status]] = {
    Job.Status.QUEUED: frozenset({Job.Status.RUNNING, Job.Status.PAUSED}),
    Job.Status.RUNNING: frozenset(Job.Status),  # running to running: the claim after an expired lease
    Job.Status.PAUSED: frozenset({Job.Status.QUEUED}),
    Job.Status.SUCCEEDED: frozenset(),
    Job.Status.FAILED: frozenset(),
    Job.Status.CANCELLED: frozenset(),
}
TERMINAL = frozenset(status for status, moves in LEGAL_MOVES.items() if not moves)


class LeaseLost(Exception):
    """A write had an old fence, or the job is no longer running. Nothing was changed, and the attempt must stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The right to work on a job. It ends when another worker claims the job after the lease has expired."""

    job_id: str
    organization_id: str
    fence: int
    worker: str
    is_exhausted: bool  # whether too many attempts made no progress; the job must then fail without another attempt
    # CUDA_VISIBLE_DEVICES of the child process; None: inherited from the worker, because no devices are stated
    visible_devices: str | None = None


def claimed_job(claim: Claim) -> QuerySet[Job]:
    """Selects the job's row if the claim is still valid. Every write of an attempt uses this query."""
    return Job.objects.filter(pk=claim.job_id, fence=claim.fence, status=Job.Status.RUNNING)


def job_lock(job_id: str) -> None:
    """Locks the job's row until the transaction ends. (SQLite has no row locks, but only one writer.)"""
    assert transaction.get_connection().in_atomic_block, "a row lock needs a transaction"
    Job.objects.select_for_update(no_key=True).only("pk").get(pk=job_id)


def update_claimed(claim: Claim, **values: Any) -> None:
    """Updates the job's row, which also locks it until the surrounding transaction ends. Raises: LeaseLost."""
    if not claimed_job(claim).update(**values):
        raise LeaseLost(f"job {claim.job_id} is no longer held with fence {claim.fence}")


def transition(claim: Claim, to: Job.Status, *, event: str, data: Mapping[str, Any], **values: Any) -> None:
    """Changes the status of a claimed job and writes the event in one transaction. Raises: LeaseLost."""
    assert to in LEGAL_MOVES[Job.Status.RUNNING], f"a running job cannot become {to}"
    with transaction.atomic():
        update_claimed(claim, status=to, lease_until=None, **values)
        job = Job.objects.annotate(now=Now()).only("organization_id", "kind", "claimed_at").get(pk=claim.job_id)
        attempt_ended(job, fence=claim.fence, at=job.now)
        event_add(job_id=claim.job_id, type=event, data={"fence": claim.fence, **data})


def event_add(*, job_id: str, type: str, data: Mapping[str, Any]) -> None:  # noqa: A002  # the column's name
    """Writes a `JobEvent` and, for a published type, the public events.

    Call this in the transaction of the reported UPDATE, after the UPDATE: the row lock prevents races in `seq`.
    """
    assert transaction.get_connection().in_atomic_block, "an event is written with its change or not at all"
    last = JobEvent.objects.filter(job_id=job_id).aggregate(last=Max("seq"))["last"] or 0
    JobEvent.objects.create(job_id=job_id, seq=last + 1, type=type, data=dict(data))
    if type in JOB_EVENTS:
        columns = Job.objects.values_list("organization_id", "project_id", "evaluation__id", "fine_tuning_job__id")
        organization_id, project_id, evaluation, fine_tuning_job = columns.get(pk=job_id)
        record = partial(event_record, organization_id=organization_id, project_id=project_id)
        record(type=JOB_EVENTS[type], object_id=job_id)
        if evaluation is not None and type in EVALUATION_EVENTS:
            record(type=EVALUATION_EVENTS[type], object_id=evaluation)
        if fine_tuning_job is not None and type in FINE_TUNING_EVENTS:
            record(type=FINE_TUNING_EVENTS[type], object_id=fine_tuning_job)
