"""A batch that is resumed with real workers has each row once, although its worker is killed in the middle."""

import os
from pathlib import Path

from control.billing.ledger.models import LedgerLine
from control.queue.jobs.models import Job
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel, batch_resume
from tests.workers.supervisor.live import LiveStack, kill_9
from tests.workers.supervisor.test_worker_process import expected_output, output_of

NUM_ROWS = 60


def test_a_resumed_batch_whose_worker_is_killed_has_each_row_once_and_charges_only_new_rows(stack: LiveStack) -> None:
    contents = [f"prompt {number}" for number in range(NUM_ROWS)]
    old = stack.make_batch(contents)
    allowed = stack.data_dir / "allowed"
    allow(allowed, 20)
    child = f"--limit {allowed}"
    first = stack.start_worker(child=child)
    stack.wait_for_committed_shards(old.job_id, 5)
    batch_cancel(batch=old)
    stack.wait_for_job(old.job_id)
    old = Batch.objects.get(pk=old.pk)
    assert (old.status, old.completed) == ("cancelled", 20)
    old_output = output_of(old)

    new = batch_resume(batch=old)
    allow(allowed, 40)
    stack.wait_for_committed_shards(new.job_id, 6)  # one shard is a copy from the old batch, five have new rows
    kill_9(first)
    allow(allowed, NUM_ROWS)
    stack.start_worker(child=child)
    job = stack.wait_for_job(new.job_id)

    new.refresh_from_db()
    assert (job.status, new.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    assert job.attempt > 1
    assert (new.total, new.completed, new.copied) == (NUM_ROWS, NUM_ROWS, 20)
    new_rows = expected_output(job.pk, contents).splitlines(keepends=True)[20:]
    assert output_of(new) == old_output + b"".join(new_rows)
    lines = LedgerLine.objects.filter(object_id=new.pk, subject="batch_output_tokens")
    assert sum(lines.values_list("count", flat=True)) == NUM_ROWS - 20
    assert output_of(Batch.objects.get(pk=old.pk)) == old_output


def allow(path: Path, num_rows: int) -> None:
    path.touch()
    os.truncate(path, num_rows)
