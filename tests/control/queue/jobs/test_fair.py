"""Worker time is shared evenly between organizations, regardless of the length and number of their jobs."""

import itertools
from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import Q
from django.db.models.functions import Now

from control.queue.jobs.fair import next_job
from control.queue.jobs.models import Job, Share
from control.queue.jobs.services import job_cancel, job_claim_next, job_fail, job_release, job_submit, job_succeed
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits
from tests.control.factories import make_organization
from tests.control.queue.jobs.helpers import INFRA, expire_lease, submit

pytestmark = pytest.mark.django_db


def claim_next() -> Claim:
    claim = job_claim_next(worker="worker")
    assert claim is not None
    return claim


def finish(claim: Claim, seconds: float) -> None:
    """Completes the job as if it had been claimed `seconds` ago."""
    Job.objects.filter(pk=claim.job_id).update(claimed_at=Now() - timedelta(seconds=seconds))
    job_succeed(claim=claim, result={})


class Simulation:
    """Simulates workers that are never idle while a job is due. The duration of a job is one of its parameters."""

    def __init__(self, num_workers: int) -> None:
        self.free_at = [0.0] * num_workers  # for each worker, the second at which it can claim its next job
        self.running: dict[int, Claim] = {}  # the current claim of each worker
        self.ended_at: dict[str, float] = {}  # maps the id of a job to the second of its end

    def submit(self, organization: Organization, count: int, seconds: float) -> list[str]:
        params = {"seconds": seconds}
        return [job_submit(organization=organization, kind="batch", params=params).pk for _ in range(count)]

    def step(self) -> float:
        """Lets the next worker that becomes free complete its job and claim another. Returns: the simulated time."""
        worker = min(range(len(self.free_at)), key=lambda n: self.free_at[n])
        now = self.free_at[worker]
        if ended := self.running.pop(worker, None):
            finish(ended, self.duration(ended))
            self.ended_at[ended.job_id] = now
        if (claim := job_claim_next(worker=str(worker))) is None:
            self.free_at[worker] = float("inf")
        else:
            self.running[worker], self.free_at[worker] = claim, now + self.duration(claim)
        return now

    def run_until(self, moment: float) -> None:
        while min(self.free_at) <= moment and min(self.free_at) != float("inf"):
            self.step()

    def duration(self, claim: Claim) -> float:
        return float(Job.objects.get(pk=claim.job_id).params["seconds"])


@pytest.mark.parametrize("num_workers", [1, 3])
def test_no_organization_waits_more_than_twice_its_fair_time_although_another_has_a_long_queue(
    num_workers: int,
) -> None:
    simulation = Simulation(num_workers)
    simulation.submit(make_organization("greedy"), 60, 30.0)
    simulation.run_until(200.0)  # one organization has used all workers so far
    other_jobs = [(simulation.submit(make_organization(), 5, seconds), seconds) for seconds in (10.0, 20.0, 60.0)]
    simulation.run_until(1500.0 / num_workers)  # long enough for all jobs of the other organizations

    for jobs, seconds in other_jobs:
        # One of four organizations gets a quarter of the workers' time, but a job needs at least its own duration.
        fair_seconds = max(len(jobs) * seconds * 4 / num_workers, seconds)
        waited = max(simulation.ended_at[job] for job in jobs) - 200.0
        assert waited <= 2 * fair_seconds, (
            f"jobs of {seconds} s took {waited:.0f} s; the fair time is {fair_seconds:.0f} s"
        )


def test_organizations_with_equal_backlogs_get_equal_time_however_long_their_jobs_are() -> None:
    simulation = Simulation(1)
    long, short = make_organization("long"), make_organization("short")
    organization_of = dict.fromkeys(simulation.submit(long, 20, 60.0), "long")
    organization_of |= dict.fromkeys(simulation.submit(short, 80, 10.0), "short")
    simulation.run_until(960.0)  # neither organization has run out of jobs

    num_ended = Counter(organization_of[job] for job in simulation.ended_at)
    assert abs(num_ended["long"] * 60 - num_ended["short"] * 10) <= 60  # the duration of one long job


def test_an_organization_gains_no_advantage_from_time_without_jobs() -> None:
    busy, returning = make_organization(), make_organization()
    submit(organization=returning)
    finish(claim_next(), 1.0)
    for _ in range(20):
        submit(organization=busy)
    for _ in range(10):
        finish(claim_next(), 100.0)
    for _ in range(10):
        submit(organization=returning)

    turns: list[Claim] = []
    for _ in range(6):
        turns.append(claim_next())
        finish(turns[-1], 100.0)

    assert Counter(turn.organization_id for turn in turns) == {busy.pk: 3, returning.pk: 3}


def test_worker_time_used_while_no_other_organization_had_jobs_does_not_count_against_an_organization() -> None:
    first, later = make_organization(), make_organization()
    submit(organization=first)
    finish(claim_next(), 100_000.0)  # no other organization has a job at this time
    for _ in range(10):
        submit(organization=later)
    submit(organization=first)

    turns: list[Claim] = []
    for _ in range(2):
        turns.append(claim_next())
        finish(turns[-1], 100.0)

    assert {turn.organization_id for turn in turns} == {first.pk, later.pk}


def num_steps(function: Callable[[], object]) -> int:
    """Returns a tenth of the number of instructions that SQLite's virtual machine runs for the function."""
    steps = itertools.count()
    connection.connection.set_progress_handler(lambda: next(steps) < 0, 10)
    try:
        function()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return next(steps)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="counts instructions of SQLite")
def test_the_work_of_a_claim_does_not_grow_with_the_queue_of_another_organization() -> None:
    loud, quiet = make_organization(), make_organization()

    def work_of_claims(num_queued: int) -> int:
        submit(organization=loud)
        Job.objects.bulk_create(Job(organization=loud, kind=Job.Kind.BATCH) for _ in range(num_queued - 1))
        submit(organization=quiet)
        return max(num_steps(lambda: finish(claim_next(), 10.0)) for _ in range(2))  # one claim for each organization

    before = work_of_claims(20)
    assert work_of_claims(2_000) <= 1.5 * before


def test_the_organization_with_fewer_running_jobs_is_served_next() -> None:
    first, second = make_organization(), make_organization()
    for organization in (first, first, first, second, second):
        submit(organization=organization)

    organization_ids = [claim_next().organization_id for _ in range(4)]

    assert Counter(organization_ids) == {first.pk: 2, second.pk: 2}


@pytest.mark.parametrize("ending", ["fail", "release", "lease"])
def test_worker_time_is_charged_however_an_attempt_ends(ending: str) -> None:
    job = submit()
    claim = claim_next()
    Job.objects.filter(pk=job.pk).update(claimed_at=Now() - timedelta(seconds=50))
    match ending:
        case "fail":
            job_fail(claim=claim, failure=INFRA)
        case "release":
            job_release(claim=claim)
        case "lease":
            expire_lease(job)
            claim_next()
    assert 48 < Share.objects.get(pk=job.organization_id).used_seconds < 60  # the job was claimed 50 s ago


def test_jobs_of_later_pipeline_stages_and_older_jobs_are_claimed_first() -> None:
    organization = make_organization()
    batches = [submit(organization=organization, kind="batch") for _ in range(2)]
    evaluation = submit(organization=organization, kind="evaluation")
    training = submit(organization=organization, kind="training")

    order = [claim_next().job_id for _ in range(4)]

    assert order == [evaluation.pk, training.pk, *(batch.pk for batch in batches)]


def test_a_cancelled_job_is_claimed_first_even_at_the_limit_of_running_jobs() -> None:
    organization = make_organization()
    Limits.objects.create(organization=organization, running_jobs=1)
    submit(organization=organization)
    cancelled = submit(organization=organization)
    claim_next()
    job_cancel(job=cancelled)

    assert claim_next().job_id == cancelled.pk


def test_an_organization_at_its_limit_of_running_jobs_does_not_block_others() -> None:
    limited, other = make_organization(), make_organization()
    Limits.objects.create(organization=limited, running_jobs=1)
    for organization in (limited, limited, other):
        submit(organization=organization)

    claims = [claim_next(), claim_next()]

    assert Counter(claim.organization_id for claim in claims) == {limited.pk: 1, other.pk: 1}
    assert next_job(Q()) is None
    finish(next(claim for claim in claims if claim.organization_id == limited.pk), 1.0)
    assert claim_next().organization_id == limited.pk


def test_an_abandoned_job_is_claimed_again_even_at_the_limit_of_running_jobs() -> None:
    organization = make_organization()
    Limits.objects.create(organization=organization, running_jobs=1)
    job = submit(organization=organization)
    submit(organization=organization)
    claim_next()
    expire_lease(job)

    assert claim_next().job_id == job.pk
    assert next_job(Q()) is None
