"""Guarantees of batches with real workers: a row that crashes the worker affects no other row, a cancellation stops
the batch within seconds, and a batch expires at the end of its window.
"""

from datetime import timedelta

import pytest
from django.utils import timezone

from control.queue.jobs.models import Job, JobEvent
from control.workflows.batches.models import Batch
from control.workflows.batches.schemas import RequestCounts
from control.workflows.batches.selectors import batch_get
from control.workflows.batches.services import batch_cancel
from tests.workers.supervisor.live import LiveStack
from tests.workers.supervisor.test_worker_process import check_output, errors_of


def counts_of(batch: Batch) -> dict[str, int]:
    """Returns the counts, and checks that they add up."""
    counts = RequestCounts.of(batch_get(batch.organization, batch.pk)).as_json()
    assert counts["total"] == sum(number for name, number in counts.items() if name != "total")
    return counts


@pytest.mark.parametrize(
    ("each_child", "shard_rows", "crashing_row"),
    [
        ("pretended child", 128, 777),
        # A real child takes seconds to start. The last shard has only four rows, so few children find the row.
        pytest.param("real child", 248, 999, marks=pytest.mark.wide),
    ],
    indirect=["each_child"],
)
def test_of_a_thousand_rows_only_the_row_that_crashes_the_worker_has_no_answer(
    each_child: LiveStack, shard_rows: int, crashing_row: int
) -> None:
    stack = each_child
    stack.environment["SLIPSTREAM_SHARD_ROWS"] = str(shard_rows)
    stack.environment["SLIPSTREAM_BACKOFF_SECONDS"] = "0.01"
    contents = [f"prompt {number}" for number in range(1000)]
    contents[crashing_row] = "crash"
    batch = stack.make_batch(contents)
    stack.start_worker()

    job = stack.wait_for_job(batch.job_id, timeout_seconds=200)
    batch.refresh_from_db()

    assert (job.status, batch.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    assert check_output(stack, batch, contents) == [number for number in range(1000) if number != crashing_row]
    assert errors_of(batch) == [(f"row-{crashing_row}", "row_crashed_worker")]
    counts = counts_of(batch)
    assert (counts["total"], counts["completed"], counts["failed"]) == (1000, 999, 1)
    assert batch.errors_by_code == {"row_crashed_worker": 1}


def test_no_row_is_started_later_than_ten_seconds_after_a_cancellation(stack: LiveStack) -> None:
    batch = stack.make_batch([f"prompt {number}" for number in range(200)])
    stack.start_worker(child="--row-seconds 0.1")
    stack.wait_for_committed_shards(batch.job_id, 2)
    counts_of(batch)

    batch_cancel(batch=batch)
    requested_at = Job.objects.get(pk=batch.job_id).cancel_requested_at
    assert requested_at is not None

    job = stack.wait_for_job(batch.job_id, timeout_seconds=10)
    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.CANCELLED, Batch.Status.CANCELLED)
    last = JobEvent.objects.filter(job=job, type="shard_committed").latest("seq")
    assert last.created_at - requested_at < timedelta(seconds=10)
    counts = counts_of(batch)
    assert 8 <= counts["completed"] < 200  # at least the two shards of four rows before the cancellation
    assert counts["cancelled"] == 200 - counts["completed"]
    assert batch_cancel(batch=batch).status == Batch.Status.CANCELLED


def test_a_queued_batch_expires_at_the_end_of_its_window_while_all_workers_are_busy(stack: LiveStack) -> None:
    running = stack.make_batch(["prompt"] * 60)
    stack.start_worker(child="--row-seconds 0.2")
    stack.wait_until(lambda: Job.objects.get(pk=running.job_id).progress_done > 0, 20)
    waiting = stack.make_batch(["prompt"] * 3)

    Batch.objects.filter(pk=waiting.pk).update(expires_at=timezone.now())

    assert stack.wait_for_job(waiting.job_id, timeout_seconds=10).status == Job.Status.FAILED
    waiting.refresh_from_db()
    assert waiting.status == Batch.Status.EXPIRED
    assert errors_of(waiting) == [(f"row-{number}", "batch_expired") for number in range(3)]
    assert counts_of(waiting)["expired"] == 3
    assert Job.objects.get(pk=running.job_id).status == Job.Status.RUNNING
