"""Measures how long claims of jobs take, made as a worker makes them."""

import time

MAX_TURNS = 100  # maximum number of claims of the other organization's jobs before the queued job is claimed


def seconds_of_claims(token: str, num_jobs: int) -> list[float]:
    """Queues jobs of the token's organization one after the other. Returns the seconds that each claim took.

    A worker shares its time between organizations, so a few jobs of another organization may be claimed first.
    Raises: RuntimeError: a queued job was not claimed within 1 + MAX_TURNS claims, or needed more than one attempt.
    """
    from control.queue.jobs.models import Job
    from control.queue.jobs.services import job_claim_next, job_submit, job_succeed
    from control.tenants.authentication.api_keys import key_of
    from control.tenants.row_security.scope import as_tenant

    organization, seconds = key_of(f"Bearer {token}").organization, []
    for _ in range(num_jobs):
        with as_tenant(organization.pk, None):
            job = job_submit(organization=organization, kind=Job.Kind.TRAINING, params={})
        for _ in range(1 + MAX_TURNS):
            began = time.perf_counter()
            claim = job_claim_next(worker="benchmark")
            seconds.append(time.perf_counter() - began)
            if claim is None:
                raise RuntimeError("the queued job is not claimed")
            with as_tenant(claim.organization_id, None):
                job_succeed(claim=claim, result={})
            if claim.job_id == job.pk:
                break
        with as_tenant(organization.pk, None):
            job.refresh_from_db()
        if (job.status, job.attempt) != (Job.Status.SUCCEEDED, 1):
            raise RuntimeError(f"a job is {job.status} after {job.attempt} attempts")
    return seconds
