"""A batch that real workers run is paused at a spend cap. When the cap is raised, it continues; no row is lost or paid
twice.
"""

import pytest

from control.billing.spending.services import spend_cap_create, spend_cap_update
from control.billing.usage.models import UsageRecord
from control.billing.usage.services import price_set
from control.queue.jobs.models import Job, JobEvent
from control.tenants.events.models import Event
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel
from control.workflows.quotes.models import Quote
from control.workflows.quotes.services import quote_cap_set
from tests.control.billing.spending.support import make_quote
from tests.workers.supervisor.live import LiveStack
from tests.workers.supervisor.test_batch_promises import counts_of
from tests.workers.supervisor.test_worker_process import errors_of, expected_output, output_of

CONTENTS = [f"prompt {number}" for number in range(40)]
ROW_NANOUSD = 3  # the fake child counts 2 prompt tokens and 1 completion token per row; each costs 1 nano-USD
SHARD_NANOUSD = 4 * ROW_NANOUSD  # the stack's shards have four rows
WHOLE_NANOUSD = len(CONTENTS) * ROW_NANOUSD


@pytest.fixture(autouse=True)
def _price(stack: LiveStack) -> None:
    price_set(base_model_id="", input_nanousd=1, output_nanousd=1, batch_percent=100)


def is_paused(batch: Batch) -> bool:
    return Job.objects.get(pk=batch.job_id).status == Job.Status.PAUSED


def spent() -> int:
    return sum(row.input_nanousd + row.output_nanousd for row in UsageRecord.objects.all())


def test_a_batch_paused_at_the_cap_of_the_organization_has_the_same_result_as_an_unpaused_one(stack: LiveStack) -> None:
    cap = spend_cap_create(organization=stack.organization, project=None, nanousd=3 * SHARD_NANOUSD)
    batch = stack.make_batch(CONTENTS)
    stack.start_worker(child="--row-seconds 0.02")

    for allowed in (3 * SHARD_NANOUSD, 5 * SHARD_NANOUSD):
        spend_cap_update(cap=cap, nanousd=allowed)
        stack.wait_until(lambda limit=allowed: is_paused(batch) and spent() >= limit, 60)  # type: ignore[misc]
        assert spent() == allowed, "a shard over the cap was paid"
        counts = counts_of(batch)
        assert counts["completed"] == allowed // ROW_NANOUSD
        assert counts["pending"] == len(CONTENTS) - counts["completed"]
    job = Job.objects.get(pk=batch.job_id)
    assert job.paused is not None
    assert job.paused["cap_id"] == cap.pk
    assert job.stalled_attempts == 0

    spend_cap_update(cap=cap, nanousd=10**9)
    stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert batch.status == Batch.Status.COMPLETED
    assert output_of(batch) == expected_output(job.pk, CONTENTS)
    assert (batch.cost_nanousd, spent()) == (WHOLE_NANOUSD, WHOLE_NANOUSD)
    assert counts_of(batch)["completed"] == len(CONTENTS)
    event_types = list(Event.objects.filter(object_id=batch.pk).order_by("number").values_list("type", flat=True))
    changes = [name for name in event_types if name in ("batch.paused", "batch.resumed")]
    assert changes == ["batch.paused", "batch.resumed"] * (len(changes) // 2)
    assert len(changes) >= 4  # the batch paused at both caps


def test_the_cap_of_a_quote_pauses_only_the_batch_created_with_the_quote(stack: LiveStack) -> None:
    quote = make_quote(stack.organization, stack.base_model, cap_nanousd=SHARD_NANOUSD)
    capped, free = stack.make_batch(CONTENTS), stack.make_batch(CONTENTS)
    Batch.objects.filter(pk=capped.pk).update(quote=quote)
    stack.start_worker()

    assert stack.wait_for_job(free.job_id).status == Job.Status.SUCCEEDED
    stack.wait_until(lambda: is_paused(capped), 60)
    capped.refresh_from_db()
    assert capped.cost_nanousd == SHARD_NANOUSD

    quote_cap_set(quote=Quote.objects.get(pk=quote.pk), nanousd=None)
    assert stack.wait_for_job(capped.job_id).status == Job.Status.SUCCEEDED


def test_a_paused_batch_can_be_cancelled_and_keeps_its_finished_rows(stack: LiveStack) -> None:
    spend_cap_create(organization=stack.organization, project=None, nanousd=2 * SHARD_NANOUSD)
    batch = stack.make_batch(CONTENTS)
    stack.start_worker(child="--row-seconds 0.02")
    stack.wait_until(lambda: is_paused(batch), 60)

    batch_cancel(batch=batch)

    assert stack.wait_for_job(batch.job_id).status == Job.Status.CANCELLED
    batch.refresh_from_db()
    assert (batch.completed, batch.unanswered, batch.cost_nanousd) == (8, 32, 2 * SHARD_NANOUSD)  # two shards
    assert len(output_of(batch).splitlines()) == 8


def test_a_paused_batch_expires_when_its_window_ends(stack: LiveStack) -> None:
    spend_cap_create(organization=stack.organization, project=None, nanousd=0)
    batch = stack.make_batch(CONTENTS)
    stack.start_worker()
    stack.wait_until(lambda: is_paused(batch), 60)
    assert not JobEvent.objects.filter(job=batch.job_id, type="shard_committed").exists()

    Batch.objects.filter(pk=batch.pk).update(expires_at=batch.created_at)

    stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert batch.status == Batch.Status.EXPIRED
    assert len(errors_of(batch)) == len(CONTENTS)
