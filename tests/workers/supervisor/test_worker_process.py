"""Real worker processes with a real database file, which are killed or stopped while they work on a job."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Collection
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.queue.jobs.models import Job, JobEvent
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel
from tests.control.factories import make_file
from tests.plain_engine import plain_answers
from tests.workers.supervisor import wrong_clock
from tests.workers.supervisor.fake_child import answer_line
from tests.workers.supervisor.live import MAX_TOKENS, LiveStack, children_of, kill_9, num_committed, read_object

LEDGER_SUBJECTS = {Subject.BATCH_INPUT_TOKENS: "prompt_tokens", Subject.BATCH_OUTPUT_TOKENS: "completion_tokens"}


def expected_output(job_id: str, contents: list[str], *, rows: Collection[int] | None = None) -> bytes:
    """Returns the expected output file. It has no lines for rows that crash or hang the fake child.

    Args: rows: numbers of the rows with an answer; None if all rows have one.
    """
    lines = []
    for number, content in enumerate(contents):
        if content not in ("crash", "hang") and (rows is None or number in rows):
            row = {"custom_id": f"row-{number}", "body": {"messages": [{"content": content}]}}
            line = answer_line(job_id, number, row)["output"]
            lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
    return b"".join(lines)


def check_output(stack: LiveStack, batch: Batch, contents: list[str]) -> list[int]:
    """Checks that all answers are those of an undisturbed run, in order, and that the ledger has their tokens once.

    Returns: the numbers of the rows with an answer.
    """
    lines = [json.loads(line) for line in output_of(batch).splitlines()]
    answered = [int(line["custom_id"].removeprefix("row-")) for line in lines]
    assert answered == sorted(set(answered))
    usage = Counter[str]()
    if stack.has_real_children:
        plain = plain_answers(
            Path(stack.base_model.path), [contents[number] for number in answered], max_tokens=MAX_TOKENS
        )
        for line, answer in zip(lines, plain, strict=True):
            body = line["response"]["body"]
            usage.update({name: body["usage"][name] for name in ("prompt_tokens", "completion_tokens")})
            assert body["choices"][0]["message"]["content"] == answer.text
            assert body["usage"]["prompt_tokens"] == answer.num_prompt_tokens
            assert body["usage"]["completion_tokens"] == answer.num_tokens
    else:
        assert output_of(batch) == expected_output(batch.job_id, contents, rows=answered)
        usage.update(prompt_tokens=2 * len(lines), completion_tokens=len(lines))
    for subject, name in LEDGER_SUBJECTS.items():
        counts = LedgerLine.objects.filter(object_id=batch.pk, subject=subject).values_list("count", flat=True)
        assert sum(counts) == usage[name], subject
    return answered


def output_of(batch: Batch) -> bytes:
    return b"" if batch.output_file is None else read_object(batch.output_file.storage_key)


def errors_of(batch: Batch) -> list[tuple[str, str]]:
    if batch.error_file is None:
        return []
    rows = [json.loads(line) for line in read_object(batch.error_file.storage_key).splitlines()]
    return [(row["custom_id"], row["error"]["code"]) for row in rows]


def test_the_child_process_of_a_killed_worker_dies(stack: LiveStack) -> None:
    batch = stack.make_batch(["prompt"] * 40)
    worker = stack.start_worker(child="--row-seconds 0.2")
    stack.wait_until(lambda: Job.objects.get(pk=batch.job_id).progress_done > 0, 20)
    assert children_of(stack.data_dir) != []

    kill_9(worker)

    stack.wait_until(lambda: children_of(stack.data_dir) == [], 5)


def test_the_work_folder_of_a_dead_attempt_is_removed_while_another_attempt_runs(stack: LiveStack) -> None:
    batch = stack.make_batch(["prompt"] * 100)
    old_folder = stack.data_dir / "work" / f"{batch.job_id}.0"  # named by job and fence; the first claim has fence 1
    old_folder.mkdir(parents=True)
    (old_folder / "rows.jsonl").touch()

    stack.start_worker(child="--row-seconds 0.1")

    stack.wait_until(lambda: not old_folder.exists(), 20)
    stack.wait_for_committed_shards(batch.job_id, 2)
    assert Job.objects.get(pk=batch.job_id).attempt == 1, "the running attempt lost its folder"


def test_two_workers_share_the_jobs_and_answer_each_row_once(stack: LiveStack) -> None:
    contents = [f"prompt {number}" for number in range(8)]
    batches = [stack.make_batch(contents) for _ in range(6)]
    stack.start_worker(child="--row-seconds 0.01")
    stack.start_worker(child="--row-seconds 0.01")
    for batch in batches:
        job = stack.wait_for_job(batch.job_id)
        batch.refresh_from_db()
        assert job.attempt == 1, "a worker claimed a job that another worker had claimed"
        assert output_of(batch) == expected_output(job.pk, contents)


def test_a_row_that_crashes_the_worker_gets_an_error_line_and_other_rows_get_answers(stack: LiveStack) -> None:
    contents = [f"prompt {number}" for number in range(12)]
    contents[6] = "crash"
    batch = stack.make_batch(contents)
    stack.start_worker()

    job = stack.wait_for_job(batch.job_id, timeout_seconds=60)
    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED)
    assert output_of(batch) == expected_output(job.pk, contents)
    assert errors_of(batch) == [("row-6", "row_crashed_worker")]
    assert (batch.completed, batch.failed) == (11, 1)


def test_a_job_whose_child_cannot_start_fails_after_three_attempts(stack: LiveStack) -> None:
    batch = stack.make_batch(["prompt"] * 4)
    stack.start_worker(child="--die-at-once")

    job = stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert (job.status, job.attempt) == (Job.Status.FAILED, 3)
    assert job.error is not None
    assert (job.error["class"], job.error["code"]) == ("infra", "worker_crash_loop")
    assert batch.status == Batch.Status.FAILED
    assert errors_of(batch) == [(f"row-{number}", "batch_failed") for number in range(4)]


@pytest.mark.parametrize(
    ("failure_class", "attempts"), [("user_config", 1), ("invalid_input", 1), ("out_of_memory", 2), ("bug", 3)]
)
def test_the_failure_class_determines_the_number_of_attempts(
    stack: LiveStack, failure_class: str, attempts: int
) -> None:
    batch = stack.make_batch(["prompt"])
    stack.start_worker(child=f"--fail {failure_class}")

    job = stack.wait_for_job(batch.job_id)
    assert job.error is not None
    assert (job.status, job.error["code"], job.attempt) == (Job.Status.FAILED, "asked_to_fail", attempts)
    # The attempt after an out-of-memory error answers half of the 16 rows that the child says it answered at once.
    assert job.params.get("max_batch_size") == (8 if failure_class == "out_of_memory" else None)


def test_a_cancelled_batch_keeps_its_partial_results(each_child: LiveStack) -> None:
    stack = each_child
    contents = [f"prompt {number}" for number in range(40)]
    batch = stack.make_batch(contents)
    stack.start_worker(child=f"--limit {stack.allow(30)}")
    stack.wait_for_committed_shards(batch.job_id, 2)

    batch_cancel(batch=batch)

    job = stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert (job.status, batch.status) == (Job.Status.CANCELLED, Batch.Status.CANCELLED)
    assert batch.completed >= 8
    answered = check_output(stack, batch, contents)
    assert len(answered) == batch.completed < len(contents)
    without_answer = sorted(set(range(len(contents))) - set(answered))
    assert errors_of(batch) == [(f"row-{number}", "batch_cancelled") for number in without_answer]
    assert children_of(stack.data_dir) == []


def test_an_expired_batch_keeps_its_finished_rows(stack: LiveStack) -> None:
    contents = [f"prompt {number}" for number in range(40)]
    batch = stack.make_batch(contents)
    Batch.objects.filter(pk=batch.pk).update(expires_at=timezone.now() + timedelta(seconds=5))
    stack.start_worker(child="--row-seconds 0.2")

    job = stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert job.error is not None
    assert (job.status, job.error["class"], batch.status) == (Job.Status.FAILED, "expired", Batch.Status.EXPIRED)
    assert output_of(batch) == expected_output(job.pk, contents[: batch.completed])
    assert errors_of(batch) == [(f"row-{number}", "batch_expired") for number in range(batch.completed, 40)]


def test_a_batch_with_bad_lines_fails_before_a_child_is_started(stack: LiveStack) -> None:
    batch = stack.make_batch(["prompt", ""])
    file = make_file(stack.organization, "{oops\n")
    Batch.objects.filter(pk=batch.pk).update(input_file=file)
    stack.start_worker(child="--die-at-once")

    job = stack.wait_for_job(batch.job_id)
    batch.refresh_from_db()
    assert job.error is not None
    assert (job.error["class"], job.error["code"], job.attempt) == ("invalid_input", "invalid_batch_input", 1)
    assert batch.errors is not None
    assert [(error["line"], error["code"]) for error in batch.errors] == [(1, "invalid_json_line")]


def test_a_busy_worker_ends_a_cancelled_job_that_never_started(stack: LiveStack) -> None:
    running, waiting = stack.make_batch(["prompt"] * 100), stack.make_batch(["prompt"] * 4)
    stack.start_worker(child="--row-seconds 0.2")
    stack.wait_until(lambda: Job.objects.get(pk=running.job_id).progress_done > 0, 20)

    batch_cancel(batch=waiting)

    assert stack.wait_for_job(waiting.job_id, timeout_seconds=10).status == Job.Status.CANCELLED
    waiting.refresh_from_db()
    assert waiting.status == Batch.Status.CANCELLED
    assert Job.objects.get(pk=running.job_id).status == Job.Status.RUNNING


def test_a_worker_finishes_its_shard_and_releases_the_job_after_sigterm(each_child: LiveStack) -> None:
    stack = each_child
    contents = [f"prompt {number}" for number in range(40)]
    batch = stack.make_batch(contents)
    worker = stack.start_worker(child=f"--limit {stack.allow(26)}", drain_seconds=300)
    stack.wait_for_committed_shards(batch.job_id, 2)
    # The child waits. A signal between the commit of a shard and the child's next event would end the attempt at once.
    stack.wait_until(lambda: Job.objects.get(pk=batch.job_id).progress_done == 26, 60)
    committed = num_committed(batch.job_id)

    worker.send_signal(signal.SIGTERM)
    stack.allow(36)  # of 40 rows: the child can finish the running shard, but not the batch

    assert worker.wait(timeout=120) == 0
    assert num_committed(batch.job_id) > committed
    job = Job.objects.get(pk=batch.job_id)
    assert (job.status, job.lease_until, job.stalled_attempts) == (Job.Status.QUEUED, None, 0)
    last = JobEvent.objects.filter(job=job).order_by("-seq").first()
    assert last is not None
    assert last.type == "released"
    stack.start_worker()
    stack.wait_for_job(job.pk)
    batch.refresh_from_db()
    assert check_output(stack, batch, contents) == list(range(len(contents)))


def test_a_hanging_child_is_killed_and_the_row_that_makes_it_hang_fails(stack: LiveStack) -> None:
    stack.environment["SLIPSTREAM_STALL_SECONDS"] = "1"
    contents = ["prompt 0", "hang"]
    batch = stack.make_batch(contents)
    stack.start_worker()

    job = stack.wait_for_job(batch.job_id, timeout_seconds=60)
    batch.refresh_from_db()
    assert job.status == Job.Status.SUCCEEDED
    assert output_of(batch) == expected_output(job.pk, contents)
    assert errors_of(batch) == [("row-1", "row_crashed_worker")]


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_worker_with_a_clock_that_is_wrong_by_an_hour_works_correctly(stack: LiveStack, seconds: int) -> None:
    contents = [f"prompt {number}" for number in range(24)]
    batch = stack.make_batch(contents)
    Batch.objects.filter(pk=batch.pk).update(expires_at=timezone.now() + timedelta(minutes=5))
    stack.start_worker(sys.executable, wrong_clock.__file__, str(seconds), child="--row-seconds 0.1")
    stack.wait_for_committed_shards(batch.job_id, 1)
    stack.start_worker(child="--row-seconds 0.1")  # must not claim the job, because the first worker's lease is valid

    job = stack.wait_for_job(batch.job_id)

    batch.refresh_from_db()
    assert (job.status, batch.status, job.attempt) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED, 1)
    assert output_of(batch) == expected_output(job.pk, contents)
