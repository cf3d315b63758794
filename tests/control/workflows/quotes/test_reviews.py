"""The chores that resume paused work continue with the next object if the review of one fails."""

from types import ModuleType
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from control.billing.spending.selectors import REACHED
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.workflows.batches import caps as batch_caps
from control.workflows.quotes import caps as job_caps
from control.workflows.quotes.models import Quote
from tests.control.factories import make_job, make_organization
from tests.control.world import World

pytestmark = pytest.mark.django_db


def pause(job: Job) -> str:
    Job.objects.filter(pk=job.pk).update(status="paused", paused={"code": REACHED, "message": "", "cap_id": ""})
    return job.pk


def fail_first(module: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Lets the first call fail and the others find no cap. Returns the arguments of the calls."""
    calls: list[Any] = []

    def cap_reached(row: Any) -> None:
        calls.append(row)
        if len(calls) == 1:
            raise RuntimeError("the first review fails")

    monkeypatch.setattr(module, name, cap_reached)
    return calls


def statuses(ids: list[str]) -> list[str]:
    return sorted(Job.objects.filter(pk__in=ids).values_list("status", flat=True))


def test_the_review_of_jobs_continues_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [pause(make_job()) for _ in range(3)]
    calls = fail_first(job_caps, "job_cap_reached", monkeypatch)

    job_caps.jobs_review()

    assert len(calls) == 3
    assert statuses(ids) == ["paused", "queued", "queued"]


def test_the_review_of_batches_continues_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [pause(World(make_organization()).batch.job) for _ in range(3)]
    calls = fail_first(batch_caps, "batch_cap_reached", monkeypatch)

    batch_caps.batches_review()

    assert len(calls) == 3
    assert statuses(ids) == ["paused", "queued", "queued"]


def test_a_quote_is_read_once_to_compare_it_with_its_cap(organization: Organization) -> None:
    quote = World(organization).quote
    Quote.objects.filter(pk=quote.pk).update(cap_nanousd=0)

    with CaptureQueriesContext(
        connection,
    ) as queries:
        reached = batch_caps.quote_cap_reached(quote.pk)

    assert reached is not None
    assert reached.cap_id == quote.pk
    table = f'FROM "{Quote._meta.db_table}"'
    assert sum(table in query["sql"] for query in queries) == 1
