"""One attempt at a job: run its handler under a lease, and record how the attempt ended.

claim ── Lease ── handler.run ──> job_succeed. If `run` raises:
                      │ Cancelled ──> handler.end, job_end_cancelled
                      │ Draining ──> job_release
                      │ Paused ──> nothing, because the handler has paused the job
                      │ AttemptFailed ──> job_fail (after handler.end, if the failure is final)
                      └ LeaseLost ──> nothing, because another worker may have claimed the job
"""

import errno
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import structlog
from botocore.exceptions import BotoCoreError, ClientError
from django.db import Error
from opentelemetry.trace import SpanKind

from control.core.observability import metrics, tracing
from control.core.settings.config import get_config
from control.core.storage.backends import StorageError
from control.queue.jobs.failures import CRASH_LOOP, Failure
from control.queue.jobs.models import Job
from control.queue.jobs.origin import REQUEST_ID, TRACEPARENT, origin_of
from control.queue.jobs.services import (
    job_end_cancelled,
    job_fail,
    job_final_failure,
    job_release,
    job_succeed,
)
from control.queue.jobs.state import Claim, LeaseLost
from control.tenants.row_security.scope import as_tenant
from control.workflows.pipelines.stages import pipelines_advance_after_job
from workers.contracts import FailureClass
from workers.supervisor.lease import Lease
from workers.supervisor.outcomes import AttemptFailed, Cancelled, Draining, Paused
from workers.supervisor.tidy import job_untidy

log = structlog.get_logger(__name__)


class Ending(StrEnum):
    """How a job ends without success."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The input of a handler: one attempt at a claimed job."""

    claim: Claim
    job: Job
    lease: Lease
    folder: Path  # scratch space; empty at first, removed after the attempt
    log_path: Path  # log file of the child process
    stop: threading.Event  # set when this worker has to stop

    @property
    def device(self) -> str:
        """The device that the child process uses, as it sees it: `auto`, `cpu`, `cuda`, or `cuda:1` without a lease."""
        visible, configured = self.claim.visible_devices, get_config().device
        if visible is None:
            return configured
        # Without the number of `cuda:1`, because the child sees only the leased device.
        return configured.partition(":")[0] if visible else "cpu"


class Handler(Protocol):
    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        """Does the remaining work and returns the result of the job. Raises: Interruption, LeaseLost."""

    def end(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> None:
        """Stores partial results of a job that ends without success. A call may be interrupted and repeated."""


def run_attempt(claim: Claim, *, stop: threading.Event, handlers: Mapping[str, Handler]) -> None:
    """Works on a claimed job."""
    with as_tenant(claim.organization_id, None):
        job = Job.objects.select_related("organization").get(pk=claim.job_id)
    with as_tenant(claim.organization_id, job.project_id):
        _run_attempt(claim, job, stop, handlers)


def _run_attempt(claim: Claim, job: Job, stop: threading.Event, handlers: Mapping[str, Handler]) -> None:
    job_id = claim.job_id
    with _observed(claim, job):
        with _work_folder(claim) as folder, Lease(claim) as lease:
            log.info("job claimed", kind=job.kind, attempt=job.attempt)
            log_path = get_config().data_dir.resolve() / "logs" / "jobs" / f"{job_id}.{claim.fence}.log"
            attempt = Attempt(claim=claim, job=job, lease=lease, folder=folder, log_path=log_path, stop=stop)
            try:
                _run_handler(attempt, handlers[job.kind])
            except LeaseLost:
                log.warning("lease lost")
                job_untidy(job_id)
                metrics.job_leases_lost.labels(job.kind).inc()
        pipelines_advance_after_job(job_id=job_id)


@contextmanager
def _observed(claim: Claim, job: Job) -> Iterator[None]:
    """Logs, counts and traces the `with` body as an attempt.

    The trace continues the trace of the API request that created the job.
    """
    origin = origin_of(claim.job_id)
    ids = {"organization_id": claim.organization_id, "job_id": claim.job_id, "fence": claim.fence}
    request = {REQUEST_ID: origin[REQUEST_ID]} if REQUEST_ID in origin else {}
    attributes: tracing.Attributes = {
        tracing.ORGANIZATION: claim.organization_id,
        tracing.JOB: claim.job_id,
        tracing.JOB_KIND: job.kind,
        tracing.FENCE: claim.fence,
    }
    parent = origin.get(TRACEPARENT, "")
    metrics.job_claims.labels(job.kind).inc()
    began = time.monotonic()
    with (
        structlog.contextvars.bound_contextvars(**ids, **request),
        tracing.span(f"attempt {job.kind}", attributes, kind=SpanKind.CONSUMER, traceparent=parent),
    ):
        yield
    metrics.job_attempt_seconds.labels(job.kind).observe(time.monotonic() - began)


def _run_handler(attempt: Attempt, handler: Handler) -> None:
    """Runs the handler and records how the attempt ended, as drawn in the module's docstring."""
    try:
        if attempt.job.cancel_requested_at is not None:
            raise Cancelled
        if attempt.claim.is_exhausted:
            raise AttemptFailed(CRASH_LOOP.failure_class, CRASH_LOOP.code, CRASH_LOOP.message)
        job_succeed(claim=attempt.claim, result=handler.run(attempt))
        log.info("job succeeded")
        metrics.jobs_ended.labels(attempt.job.kind, Job.Status.SUCCEEDED.value).inc()
    except LeaseLost:
        raise
    except Cancelled:
        attempt.lease.check()
        handler.end(attempt, Ending.CANCELLED, None)
        job_end_cancelled(claim=attempt.claim)
        log.info("job cancelled")
        metrics.jobs_ended.labels(attempt.job.kind, Job.Status.CANCELLED.value).inc()
    except Draining:
        job_release(claim=attempt.claim)
        log.info("job released")
    except Paused:
        log.info("job paused")
    except AttemptFailed as error:
        _fail(attempt, handler, error.failure)
    except Exception as error:  # the boundary of an attempt: every error must be recorded in the job
        log.exception("unexpected error in attempt")
        _fail(attempt, handler, _classify(error))


def _fail(attempt: Attempt, handler: Handler, failure: Failure) -> None:
    tracing.fail_current(failure.code)
    attempt.lease.check()
    attempt.job.refresh_from_db()
    final = job_final_failure(job=attempt.job, failure=failure)
    if final is not None:
        handler.end(attempt, Ending.EXPIRED if final.failure_class is FailureClass.EXPIRED else Ending.FAILED, final)
    ended = job_fail(claim=attempt.claim, failure=failure)
    log.warning("attempt failed", code=failure.code, reason=failure.message, is_final=ended)
    if ended:
        metrics.jobs_ended.labels(attempt.job.kind, Job.Status.FAILED.value).inc()
    else:
        metrics.job_retries.labels(attempt.job.kind, failure.failure_class.value).inc()


def _classify(error: Exception) -> Failure:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return Failure(failure_class=FailureClass.INFRA, code="disk_full", message="The worker's disk is full.")
    if isinstance(error, StorageError | BotoCoreError | ClientError):
        return Failure(failure_class=FailureClass.INFRA, code="storage_error", message="Storage could not be used.")
    if isinstance(error, Error):  # DatabaseError is narrower: it does not include InterfaceError
        return Failure(failure_class=FailureClass.INFRA, code="database_error", message="The database failed.")
    if isinstance(error, OSError):
        return Failure(failure_class=FailureClass.INFRA, code="io_error", message="The worker's machine failed.")
    # The log has the cause; customers cannot act on it and must not see internals.
    return Failure(failure_class=FailureClass.BUG, code="internal_error", message="The worker made an error.")


def work_folders_sweep() -> None:
    """Removes work folders that killed attempts left on this machine."""
    for folder in _work_root().glob("*.*"):
        job_id, _, fence = folder.name.rpartition(".")
        if not Job.objects.filter(pk=job_id, fence=fence, status=Job.Status.RUNNING).exists():
            job_untidy(job_id)
            shutil.rmtree(folder, ignore_errors=True)


def _work_root() -> Path:
    return get_config().data_dir.resolve() / "work"


@contextmanager
def _work_folder(claim: Claim) -> Iterator[Path]:
    folder = _work_root() / f"{claim.job_id}.{claim.fence}"
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
