"""The usage ledger records all tokens and all device time exactly once, even if a process is killed, is late or
repeats a request."""

import datetime as dt
import threading
from collections.abc import Callable

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.models import F, Sum
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.billing.ledger.selectors import ledger_totals
from control.billing.usage.models import UsageRecord
from control.billing.usage.services import Tokens, price_set
from control.queue.jobs.models import Job
from control.queue.jobs.services import (
    job_fail,
    job_pause_on_request,
    job_release,
    job_renew,
    job_resume,
    job_succeed,
)
from control.queue.jobs.shards import ShardRows
from control.queue.jobs.state import LeaseLost
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller, on_account_of
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.services import batch_commit_shard
from tests.control.factories import add_usage, make_base_model, make_job, make_key, make_organization
from tests.control.queue.jobs.helpers import INFRA, add_shards, claim, end_backoff
from tests.control.workflows.batches.helpers import make_batch

NOON = dt.datetime(2026, 3, 10, 12, 0, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


def age_claim(job: Job, seconds: float) -> None:
    """Makes the running attempt older: moves its claim and its last renewal this many seconds into the past."""
    age = dt.timedelta(seconds=seconds)
    job.refresh_from_db()
    assert job.claimed_at is not None
    assert job.lease_until is not None
    Job.objects.filter(pk=job.pk).update(claimed_at=job.claimed_at - age, lease_until=job.lease_until - age)


def seconds_of(job: Job) -> list[float]:
    """The device time of each recorded attempt, in the order of the attempts."""
    lines = LedgerLine.objects.filter(object_id=job.pk).order_by("pk")
    assert [line.sequence for line in lines] == sorted({line.sequence for line in lines}, key=int)
    return [line.count / 1000 for line in lines]


def test_tokens_of_a_shard_are_recorded_once_with_the_price_of_their_base_model(organization: Organization) -> None:
    batch = make_batch(organization)
    model = make_base_model("m")
    batch.base_model = model
    batch.save()
    price_set(base_model_id=model.pk, input_nanousd=3, output_nanousd=5, batch_percent=50)
    add_shards(batch.job, 2, 1)
    held = claim(batch.job)
    rows = ShardRows(completed=2, failed=0, usage={"prompt_tokens": 11, "completion_tokens": 7})
    for _ in range(2):
        batch_commit_shard(batch=batch, claim=held, shard_no=0, storage_key="0", rows=rows)

    lines = {line.subject: line for line in LedgerLine.objects.filter(object_id=batch.pk)}
    assert set(lines) == {Subject.BATCH_INPUT_TOKENS, Subject.BATCH_OUTPUT_TOKENS}
    line = lines[Subject.BATCH_INPUT_TOKENS]
    assert (line.sequence, line.base_model_id, line.count) == ("0", model.pk, 11)
    assert (line.price_nanousd, line.price_percent, line.cost_nanousd) == (3, 50, 11 * 3 // 2)


def test_a_repeated_call_for_the_same_part_of_usage_changes_nothing(organization: Organization) -> None:
    price_set(base_model_id="", input_nanousd=1, output_nanousd=1)
    caller = Caller(organization_id=organization.pk)
    costs = [add_usage(caller, sequence="flush-1", tokens=Tokens(input=10, output=5)) for _ in range(3)]

    assert costs == [15, 0, 0]
    assert UsageRecord.objects.get().input_tokens == 10
    assert LedgerLine.objects.aggregate(count=Sum("count"), cost=Sum("cost_nanousd")) == {"count": 15, "cost": 15}


def test_the_ledger_and_the_usage_records_have_the_same_sums(organization: Organization) -> None:
    price_set(base_model_id="", input_nanousd=3, output_nanousd=7, batch_percent=33)
    caller = Caller(organization_id=organization.pk)
    for number in range(50):
        add_usage(caller, is_batch=number % 3 == 0, tokens=Tokens(input=number, output=2 * number), at=NOON)

    totals = ledger_totals(organization, start=NOON, end=NOON + SECOND)

    usage = UsageRecord.objects.aggregate(
        tokens=Sum("input_tokens") + Sum("output_tokens"), cost=Sum("input_nanousd") + Sum("output_nanousd")
    )
    assert sum(total.count for total in totals) == usage["tokens"]
    assert sum(total.cost_nanousd for total in totals) == usage["cost"]


def test_each_ledger_line_belongs_to_one_period_and_one_organization(
    organization: Organization, other_organization: Organization
) -> None:
    caller = Caller(organization_id=organization.pk)
    for at in (NOON, NOON + SECOND):
        add_usage(caller, tokens=Tokens(input=1), at=at)
    add_usage(Caller(organization_id=other_organization.pk), tokens=Tokens(input=1), at=NOON)

    def count(start: dt.datetime, end: dt.datetime) -> int:
        return sum(total.count for total in ledger_totals(organization, start=start, end=end))

    assert (count(NOON, NOON + SECOND), count(NOON + SECOND, NOON + 2 * SECOND)) == (1, 1)
    assert count(NOON, NOON + 2 * SECOND) == 2


@pytest.mark.parametrize(
    ("kind", "subject"),
    [("batch", "batch_time"), ("training", "training_time"), ("evaluation", "evaluation_time"), ("model_check", None)],
)
def test_the_device_time_of_each_kind_of_job_is_recorded_when_its_attempt_ends(
    organization: Organization, kind: str, subject: str | None
) -> None:
    job = make_job(organization, kind=kind)
    held = claim(job)
    age_claim(job, 10)
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() + 30 * SECOND)

    job_succeed(claim=held, result={})

    lines = list(LedgerLine.objects.all())
    assert [line.subject for line in lines] == ([] if subject is None else [subject])
    for line in lines:
        assert 10_000 <= line.count < 15_000
        assert (line.device_kind, line.price_nanousd, line.cost_nanousd) == ("cpu", None, 0)
        assert line.ended_at - line.started_at == pytest.approx(line.count * SECOND / 1000, abs=SECOND / 1000)


def test_a_killed_worker_is_charged_until_its_last_renewal_and_its_late_write_changes_nothing(
    organization: Organization,
) -> None:
    job = make_job(organization)
    killed = claim(job)
    age_claim(job, 100)  # the lease has long expired after 100 seconds without a renewal
    Job.objects.filter(pk=job.pk).update(claimed_at=F("claimed_at") - 20 * SECOND)
    second = claim(job, "another worker")

    with pytest.raises(LeaseLost):
        job_succeed(claim=killed, result={})
    job_succeed(claim=second, result={})

    first_seconds, second_seconds = seconds_of(job)
    assert first_seconds == pytest.approx(20, abs=2)  # from the claim to the last renewal, not to the lease's end
    assert second_seconds < 2


def test_every_way_to_end_an_attempt_records_its_time_once(organization: Organization) -> None:
    job = make_job(organization)
    held = claim(job)
    ends: list[Callable[[], object]] = [lambda: job_release(claim=held), lambda: job_fail(claim=held, failure=INFRA)]
    for end in ends:
        end()
        end_backoff(job)
        held = claim(job)
    job_pause_on_request(job=job, why={"code": "requested", "message": ""})
    job_resume(job=job, code="requested")
    held = claim(job)
    job_renew(claim=held)
    job_succeed(claim=held, result={})

    assert len(seconds_of(job)) == Job.objects.get(pk=job.pk).attempt == 4


def test_a_pause_of_a_job_whose_worker_was_killed_charges_until_the_last_renewal(organization: Organization) -> None:
    job = make_job(organization)
    claim(job)
    age_claim(job, 500)

    job_pause_on_request(job=job, why={"code": "requested", "message": ""})

    assert seconds_of(job) == [pytest.approx(0, abs=2)]


def test_a_ledger_line_names_the_project_and_key_of_the_job(organization: Organization) -> None:
    project = project_create(organization=organization, name="p")
    key, _ = make_key(organization, project=project)
    with on_account_of(Caller.of(key)):
        batch = make_batch(organization)
    job_succeed(claim=claim(batch.job), result={})

    line = LedgerLine.objects.get(subject=Subject.BATCH_TIME)
    assert (line.project_id, line.api_key_id) == (project.pk, key.pk)


@pytest.mark.parametrize(
    "change",
    [lambda lines: lines.update(count=0), lambda lines: lines.delete()],
    ids=["update", "delete"],
)
def test_the_database_refuses_to_change_or_delete_a_ledger_line(
    organization: Organization, change: Callable[[object], object]
) -> None:
    add_usage(Caller(organization_id=organization.pk), tokens=Tokens(input=1))

    with pytest.raises(DatabaseError), transaction.atomic():
        change(LedgerLine.objects.all())

    assert LedgerLine.objects.aggregate(count=Sum("count")) == {"count": 1}


@pytest.mark.django_db(transaction=True)
def test_of_many_threads_that_record_the_same_part_of_usage_one_succeeds() -> None:
    caller = Caller(organization_id=make_organization().pk)
    price_set(base_model_id="", input_nanousd=1, output_nanousd=1)
    costs: list[int] = []

    def record() -> None:
        try:
            with as_tenant(caller.organization_id, None):
                costs.append(add_usage(caller, sequence="one", tokens=Tokens(input=10)))
        finally:
            connection.close()

    threads = [threading.Thread(target=record) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(costs) == [0] * 7 + [10]
    assert UsageRecord.objects.get().input_tokens == 10
