"""Workers claim jobs in the order of the jobs' queue positions."""

import datetime as dt
import random

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from control.queue.jobs.fair import level_of
from control.queue.jobs.models import Job, Share
from control.queue.jobs.positions import queue_positions_set
from control.queue.jobs.services import job_claim_next, job_submit
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits
from tests.control.factories import client_of, make_job, make_organization
from tests.control.queue.jobs.helpers import claim, expire_lease

NUM_JOBS = 10_000


def positions_of(organization: Organization) -> dict[str, int | None]:
    jobs = list(Job.objects.filter(organization=organization))
    queue_positions_set(jobs)
    return {job.pk: job.queue_position for job in jobs}


@pytest.mark.django_db
@pytest.mark.parametrize("seed", range(12))
def test_jobs_are_claimed_in_the_order_of_their_positions(seed: int) -> None:
    """The organizations have random worker time, and waiting, running and abandoned jobs of random priorities."""
    draw = random.Random(seed)
    organizations = [make_organization() for _ in range(draw.randint(1, 5))]
    for organization in organizations:
        Share.objects.create(organization=organization, used_seconds=draw.choice([0.0, 5.0, 9.5]))
        kinds = draw.choices(["waiting", "running", "abandoned"], weights=[6, 2, 1], k=draw.randint(1, 8))
        for kind in kinds:
            job = make_job(organization, priority=draw.randint(0, 2))
            if kind != "waiting":
                claim(job)
            if kind == "abandoned":
                expire_lease(job)
    expected = {pk: place for each in organizations for pk, place in positions_of(each).items() if place is not None}
    assert len(expected) == Job.objects.filter(status="queued").count()

    order = []
    while (claimed := job_claim_next(worker="worker")) is not None:
        order.append(claimed.job_id)

    assert {pk: order.index(pk) + 1 for pk in expected} == expected


@pytest.mark.django_db
def test_an_organization_at_its_limit_of_running_jobs_is_not_in_front_of_others() -> None:
    limited, other = make_organization(), make_organization()
    Limits.objects.update_or_create(organization=limited, defaults={"running_jobs": 1})
    make_job(limited)
    assert job_claim_next(worker="worker") is not None
    own, waiting = make_job(limited), make_job(other)
    claim(make_job(other))
    claim(make_job(other))

    assert positions_of(other)[waiting.pk] == 1
    assert positions_of(limited)[own.pk] == 1


@pytest.mark.django_db
def test_only_waiting_jobs_have_a_position() -> None:
    organization = make_organization()
    running = make_job(organization)
    claim(running)
    in_backoff = make_job(organization, not_before=timezone.now() + dt.timedelta(hours=1))
    to_cancel = make_job(organization, cancel_requested_at=timezone.now())
    ended, waiting = make_job(organization, status="failed"), make_job(organization)

    places = positions_of(organization)

    assert [places[job.pk] for job in (running, in_backoff, to_cancel, ended)] == [None] * 4
    assert places[waiting.pk] == 1


@pytest.mark.django_db
def test_jobs_show_their_positions(client: Client, organization: Organization) -> None:
    jobs = sorted((make_job(organization) for _ in range(3)), key=lambda job: job.pk)

    listed = client.get("/v1/jobs").json()["data"]

    assert [(job["id"], job["queue_position"]) for job in listed] == [(jobs[n].pk, n + 1) for n in (2, 1, 0)]
    assert client.get(f"/v1/jobs/{jobs[1].pk}").json() == listed[1]
    assert client.post(f"/v1/jobs/{jobs[0].pk}/cancel").json()["queue_position"] is None


@pytest.mark.django_db
def test_positions_among_ten_thousand_jobs_take_two_queries() -> None:
    organizations = [make_organization() for _ in range(20)]
    Job.objects.bulk_create(
        Job(organization=organizations[min(19, n % 40)], kind="batch", priority=n % 3) for n in range(NUM_JOBS)
    )
    page = list(Job.objects.filter(organization=organizations[19]).order_by("-pk")[:100])
    with CaptureQueriesContext(connection) as queries:
        queue_positions_set(page)

    statements = [query["sql"] for query in queries if "set_config" not in query["sql"]]
    assert len([sql for sql in statements if sql.startswith("SELECT")]) == 2
    ordered = sorted(Job.objects.filter(organization=organizations[19]), key=lambda job: (-job.priority, job.pk))
    ranks = {job.pk: rank for rank, job in enumerate(ordered)}
    others = NUM_JOBS // 40  # number of jobs of each other organization; their priorities do not matter
    for job in page:
        before = [min(ranks[job.pk] + (each.pk < organizations[19].pk), others) for each in organizations[:19]]
        assert job.queue_position == 1 + ranks[job.pk] + sum(before)


@pytest.mark.django_db
def test_a_priority_orders_the_jobs_of_its_organization_but_takes_no_turn_from_another_organization() -> None:
    organizations = [make_organization(), make_organization()]
    jobs: dict[str, tuple[int, str]] = {}
    for level in ("low", "normal", "high"):
        job = job_submit(organization=organizations[0], kind="batch", params={}, priority=level)
        jobs[job.pk] = (0, level)
        assert level_of(job) == level
        jobs[job_submit(organization=organizations[1], kind="evaluation", params={}).pk] = (1, "")

    order = []
    while (claimed := job_claim_next(worker="worker")) is not None:
        order.append(jobs[claimed.job_id])

    assert [level for owner, level in order if owner == 0] == ["high", "normal", "low"]
    turns = [owner for owner, _ in order]
    assert turns in ([0, 1] * 3, [1, 0] * 3)


@pytest.mark.django_db
def test_positions_count_jobs_of_other_projects_and_organizations(organization: Organization) -> None:
    other = make_organization()
    make_job(other)
    Share.objects.create(organization=organization, used_seconds=1.0)
    job = make_job(organization)

    body = client_of(organization).get(f"/v1/jobs/{job.pk}").json()

    assert body["queue_position"] == 2
