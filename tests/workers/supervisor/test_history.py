"""`check_histories` accepts a valid history and reports each fault that a test puts into one."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.db.models import F
from django.utils import timezone

from control.core.storage.backends import get_storage
from control.queue.jobs.models import Job, JobEvent, JobShard
from control.queue.jobs.services import job_claim, job_release, job_succeed
from control.queue.jobs.shards import ShardRows, job_commit_shard
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import Organization
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create, batch_validate
from tests.control.factories import chat_row, make_base_model, make_file, make_organization
from tests.workers.supervisor.fake_child import answer_line
from tests.workers.supervisor.history import check_histories
from tests.workers.support import write_lines
from workers.supervisor.staging import shard_key

NUM_ROWS = 8


def claim_of(job: Job) -> Claim:
    claim = job_claim(job_id=job.pk, worker="worker")
    assert claim is not None
    return claim


def commit(claim: Claim, shard: JobShard, folder: Path) -> None:
    rows = [chat_row(f"row-{number}") for number in range(NUM_ROWS)]
    lines = [answer_line(claim.job_id, number, rows[number]) for number in range(shard.row_from, shard.row_to)]
    key = shard_key(claim, shard.shard_no)
    get_storage().put_file(key, write_lines(folder / "shard.jsonl", lines))
    counts = ShardRows(completed=len(lines), failed=0, usage={})
    assert job_commit_shard(claim=claim, shard_no=shard.shard_no, storage_key=key, rows=counts)


@pytest.fixture
def job(db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The job of a batch of two shards, which were answered in two attempts."""
    monkeypatch.setattr(settings, "SLIPSTREAM", settings.SLIPSTREAM.model_copy(update={"shard_rows": 4}))
    organization: Organization = make_organization()
    file = make_file(organization, [chat_row(f"row-{number}") for number in range(NUM_ROWS)])
    make_base_model("tiny")
    batch = batch_create(organization=organization, input_file=file, endpoint="/v1/chat/completions", model="tiny")
    first = claim_of(batch.job)
    batch_validate(batch=batch)
    shard_0, shard_1 = JobShard.objects.filter(job=batch.job)
    commit(first, shard_0, tmp_path)
    job_release(claim=first)
    second = claim_of(batch.job)
    commit(second, shard_1, tmp_path)
    batch_assemble(batch=batch, final="completed")
    job_succeed(claim=second, result={})
    return Job.objects.get(pk=batch.job_id)


def events(job: Job, kind: str) -> list[JobEvent]:
    return list(JobEvent.objects.filter(job=job, type=kind).order_by("seq"))


def add_event(job: Job, kind: str, **data: object) -> None:
    JobEvent.objects.create(job=job, seq=JobEvent.objects.filter(job=job).count() + 1, type=kind, data=data)


def change_event(event: JobEvent, **data: object) -> None:
    JobEvent.objects.filter(pk=event.pk).update(data={**event.data, **data})


def an_event_is_missing(job: Job) -> None:
    events(job, "shard_committed")[0].delete()


def the_job_ends_twice(job: Job) -> None:
    add_event(job, "failed", fence=2)


def an_event_follows_the_end_of_the_job(job: Job) -> None:
    add_event(job, "retried", fence=2)


def the_status_differs_from_the_last_event(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(status="cancelled")


def the_final_event_is_missing(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(status="running")


def a_job_to_be_cancelled_is_in_back_off(job: Job) -> None:
    later = timezone.now() + timedelta(minutes=1)
    JobEvent.objects.filter(job=job, type="succeeded").delete()
    Job.objects.filter(pk=job.pk).update(
        status="queued", finished_at=None, cancel_requested_at=timezone.now(), not_before=later
    )


def a_job_to_be_cancelled_is_paused(job: Job) -> None:
    JobEvent.objects.filter(job=job, type="succeeded").delete()
    Job.objects.filter(pk=job.pk).update(status="paused", finished_at=None, cancel_requested_at=timezone.now())


def a_fence_is_used_twice(job: Job) -> None:
    change_event(events(job, "claimed")[1], fence=1)


def a_fence_is_skipped(job: Job) -> None:
    change_event(events(job, "claimed")[1], fence=3)


def a_claim_has_no_event(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(fence=F("fence") + 1, attempt=F("attempt") + 1)


def an_event_has_an_old_fence(job: Job) -> None:
    change_event(events(job, "shard_committed")[1], fence=1)


def a_shard_is_committed_twice(job: Job) -> None:
    change_event(events(job, "shard_committed")[1], shard_no=0)


def a_committed_shard_has_no_event(job: Job) -> None:
    JobShard.objects.filter(job=job, shard_no=1).update(storage_key="")


def a_shard_has_an_old_fence(job: Job) -> None:
    JobShard.objects.filter(job=job, shard_no=1).update(fence=1)


def a_storage_key_has_an_old_fence(job: Job) -> None:
    JobShard.objects.filter(job=job, shard_no=1).update(storage_key=f"jobs/{job.pk}/shards/1.1.jsonl")


def a_shard_counts_a_row_too_few(job: Job) -> None:
    JobShard.objects.filter(job=job, shard_no=1).update(completed=F("completed") - 1)


def two_shards_share_a_row(job: Job) -> None:
    JobShard.objects.filter(job=job, shard_no=1).update(row_from=F("row_from") - 1, completed=F("completed") + 1)


def a_row_is_in_no_shard(job: Job) -> None:
    JobShard.objects.filter(job=job, shard_no=1).update(row_to=F("row_to") - 1, completed=F("completed") - 1)


def counts_do_not_sum(job: Job) -> None:
    Batch.objects.filter(job=job).update(failed=1)


def the_output_is_a_line_short(job: Job) -> None:
    batch = Batch.objects.get(job=job)
    Batch.objects.filter(pk=batch.pk).update(output_file=batch.input_file)
    path = settings.SLIPSTREAM.storage_dir / batch.input_file.storage_key
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def a_row_is_in_both_files(job: Job) -> None:
    batch = Batch.objects.get(job=job)
    Batch.objects.filter(pk=batch.pk).update(error_file=batch.output_file)


# Part of the check's message -> function that damages the history. If two functions lead to the same message, their
# keys are different parts of this message.
FAULTS: dict[str, Callable[[Job], None]] = {
    "an event is missing": an_event_is_missing,
    "the final events do not match": the_job_ends_twice,
    "an event follows the final event": an_event_follows_the_end_of_the_job,
    "do not match the job's status": the_status_differs_from_the_last_event,
    "has not ended": the_final_event_is_missing,
    "a fence was skipped or used twice": a_fence_is_used_twice,
    "skipped or used twice": a_fence_is_skipped,
    "a claim has no event": a_claim_has_no_event,
    "by an attempt that had lost the job": an_event_has_an_old_fence,
    "a shard was committed twice": a_shard_is_committed_twice,
    "an event has no committed shard": a_committed_shard_has_no_event,
    "have different fences": a_shard_has_an_old_fence,
    "another attempt's fence": a_storage_key_has_an_old_fence,
    "a row of a shard is not counted": a_shard_counts_a_row_too_few,
    "two shards share a row": two_shards_share_a_row,
    "a row is in no shard": a_row_is_in_no_shard,
    "not counted, or counted twice": counts_do_not_sum,
    "one line per completed row": the_output_is_a_line_short,
    "in neither file, or in both": a_row_is_in_both_files,
}


def test_a_valid_history_passes_the_check(job: Job) -> None:
    check_histories([job.pk], all_ended=True)


@pytest.mark.parametrize(("message", "damage"), FAULTS.items(), ids=[damage.__name__ for damage in FAULTS.values()])
def test_the_check_reports_each_kind_of_fault(job: Job, message: str, damage: Callable[[Job], None]) -> None:
    damage(job)

    with pytest.raises(AssertionError, match=message):
        check_histories([job.pk], all_ended=True)


@pytest.mark.parametrize("damage", [a_job_to_be_cancelled_is_in_back_off, a_job_to_be_cancelled_is_paused])
def test_the_check_reports_a_job_that_is_paused_or_in_back_off_although_its_cancellation_was_requested(
    job: Job, damage: Callable[[Job], None]
) -> None:
    damage(job)

    with pytest.raises(AssertionError, match="is paused or in back-off"):
        check_histories([job.pk])


def test_the_check_reports_a_submitted_job_that_does_not_exist(job: Job) -> None:
    with pytest.raises(AssertionError, match="accepted jobs are missing"):
        check_histories([job.pk, "job_none"])


def test_a_queued_job_passes_the_check_unless_all_jobs_should_have_ended(job: Job) -> None:
    Job.objects.create(organization=job.organization, kind=Job.Kind.TRAINING)

    check_histories([job.pk])
    with pytest.raises(AssertionError, match="has not ended"):
        check_histories([job.pk], all_ended=True)


def test_the_check_reports_an_ended_job_without_finished_at(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(finished_at=None)
    with pytest.raises(AssertionError, match="finished_at does not match"):
        check_histories([job.pk])
    Job.objects.create(organization=job.organization, kind=Job.Kind.TRAINING, finished_at=timezone.now())
    with pytest.raises(AssertionError, match="finished_at does not match"):
        check_histories()
