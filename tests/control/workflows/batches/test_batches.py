"""Follows batches from their creation to their result files. The tests commit shards in place of a worker."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.data.files.services import file_delete
from control.queue.jobs.models import Job, JobShard
from control.tenants.accounts.models import Organization
from control.workflows.batches import assemble
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.results import ResultsError
from control.workflows.batches.schemas import RequestCounts
from control.workflows.batches.services import batch_cancel, batch_validate
from tests.control.factories import make_base_model, make_file
from tests.control.workflows.batches.helpers import CHAT, commit_shard, entry, ids_of, lines_of, make_batch, put_shard


@pytest.fixture(autouse=True)
def two_rows_per_shard(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 2})


def test_validation_stores_the_rows_and_creates_the_shards(db: None) -> None:
    batch = make_batch()

    assert batch_validate(batch=batch)

    assert (batch.status, batch.total) == ("in_progress", 5)
    assert batch.base_model is not None
    assert batch.base_model.name == "tiny"
    shards = JobShard.objects.filter(job=batch.job).values_list("row_from", "row_to")
    assert list(shards) == [(0, 2), (2, 4), (4, 5)]
    with get_storage().open(batch.job.params["rows_key"]) as rows:
        assert [json.loads(line)["custom_id"] for line in rows.read().splitlines()] == [f"row-{i}" for i in range(5)]


def test_validating_a_batch_again_creates_no_further_shards(db: None) -> None:
    batch = make_batch()

    assert batch_validate(batch=batch)
    stale = Batch.objects.get(pk=batch.pk)  # the batch as another worker read it before the first validation
    stale.status = Batch.Status.VALIDATING
    assert batch_validate(batch=stale)

    assert JobShard.objects.filter(job=batch.job).count() == 3


def test_a_batch_with_invalid_lines_is_created_and_then_fails_with_an_error_per_line(
    client: Client, organization: Organization
) -> None:
    make_base_model("tiny")
    file = make_file(organization, '{"custom_id": "a"}\nnot json\n')
    made = client.post(
        "/v1/batches",
        {"input_file_id": file.pk, "endpoint": CHAT, "completion_window": "24h"},
        content_type="application/json",
    ).json()
    assert (made["status"], made["errors"]) == ("validating", None)

    assert not batch_validate(batch=Batch.objects.get(pk=made["id"]))

    body = client.get(f"/v1/batches/{made['id']}").json()
    assert body["status"] == "failed"
    assert body["failed_at"] is not None
    assert body["errors"]["object"] == "list"
    assert body["errors"]["total_count"] == 2
    errors = [(error["line"], error["code"], error["param"]) for error in body["errors"]["data"]]
    assert errors == [(1, "invalid_body", "body"), (2, "invalid_json_line", None)]
    assert not JobShard.objects.exists()


def test_a_batch_fails_if_its_input_file_is_deleted_before_validation(transactional_db: None) -> None:
    batch = make_batch()
    file_delete(file=batch.input_file)

    assert not batch_validate(batch=batch)

    assert batch.status == "failed"
    assert [error["code"] for error in batch.errors or ()] == ["file_not_found"]


@pytest.mark.parametrize("last", [0, 1, 2])
def test_each_result_appears_once_in_input_order_whichever_shard_is_committed_last(
    db: None, tmp_path: Path, last: int
) -> None:
    batch = make_batch()
    batch_validate(batch=batch)
    for shard_no in [*(n for n in (2, 1, 0) if n != last), last]:
        commit_shard(batch, shard_no, tmp_path, failed_rows=frozenset({3}))

    batch_assemble(batch=batch, final="completed")

    assert batch.status == "completed"
    assert ids_of(batch.output_file) == ["row-0", "row-1", "row-2", "row-4"]
    assert ids_of(batch.error_file) == ["row-3"]
    assert lines_of(batch.output_file)[0] == entry(0)["output"]
    assert lines_of(batch.error_file)[0] == entry(3, ok=False)["output"]
    assert (batch.total, batch.completed, batch.failed, batch.unanswered) == (5, 4, 1, 0)
    assert batch.errors_by_code == {"http_400": 1}
    assert batch.usage == {"input_tokens": 12, "output_tokens": 8, "total_tokens": 20}  # of four answers
    with get_storage().open(batch.tokens_key) as tokens:
        assert [json.loads(line) for line in tokens.read().splitlines()] == [
            {
                "custom_id": f"row-{row}",
                "prompt_token_ids": [1, 2, row],
                "completion_token_ids": [row],
                "finish_reason": "stop",
            }
            for row in (0, 1, 2, 4)
        ]


def test_results_of_a_split_shard_are_in_input_order(db: None, tmp_path: Path) -> None:
    batch = make_batch()
    batch_validate(batch=batch)
    # The first shard is split as after repeated crashes: the new shard has the highest number, but not the last rows.
    first = JobShard.objects.get(job=batch.job, shard_no=0)
    JobShard.objects.filter(pk=first.pk).update(row_to=1)
    JobShard.objects.create(job=batch.job, shard_no=3, row_from=1, row_to=2)
    for shard_no in range(4):
        commit_shard(batch, shard_no, tmp_path)

    batch_assemble(batch=batch, final="completed")

    assert ids_of(batch.output_file) == [f"row-{i}" for i in range(5)]
    assert batch.error_file is None


@pytest.mark.parametrize(
    ("final", "code"), [("cancelled", "batch_cancelled"), ("expired", "batch_expired"), ("failed", "batch_failed")]
)
def test_a_batch_that_ends_early_keeps_the_finished_rows_and_gives_other_rows_an_error(
    db: None, tmp_path: Path, final: Any, code: str
) -> None:
    batch = make_batch()
    batch_validate(batch=batch)
    commit_shard(batch, 1, tmp_path)

    batch_assemble(batch=batch, final=final)

    assert batch.status == final
    assert ids_of(batch.output_file) == ["row-2", "row-3"]
    unanswered = lines_of(batch.error_file)
    assert [line["custom_id"] for line in unanswered] == ["row-0", "row-1", "row-4"]
    assert {line["error"]["code"] for line in unanswered} == {code}
    assert [line["response"] for line in unanswered] == [None] * 3
    assert unanswered[2]["id"].endswith("_4")  # the number of the row
    assert batch.errors_by_code == {code: 3}
    counts = {"total": 5, "completed": 2, "failed": 0, "cancelled": 0, "expired": 0, "pending": 0, final: 3}
    assert RequestCounts.of(batch).as_json() == counts


def test_assembling_again_writes_no_second_result_file(db: None, tmp_path: Path) -> None:
    batch = make_batch()
    batch_validate(batch=batch)
    for shard_no in range(3):
        commit_shard(batch, shard_no, tmp_path)
    batch_assemble(batch=batch, final="completed")
    num_files = File.objects.count()

    batch_assemble(batch=batch, final="failed")

    assert batch.status == "completed"
    assert File.objects.count() == num_files


def test_the_next_attempt_completes_an_assembly_that_crashed(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch()
    batch_validate(batch=batch)
    for shard_no in range(3):
        commit_shard(batch, shard_no, tmp_path)

    def crash(**values: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr("control.workflows.batches.assemble.file_record", crash)
        with pytest.raises(RuntimeError):
            batch_assemble(batch=batch, final="completed")
    batch.refresh_from_db()
    assert (batch.status, batch.output_file) == ("finalizing", None)

    batch_assemble(batch=batch, final="completed")

    assert ids_of(batch.output_file) == [f"row-{i}" for i in range(5)]
    assert File.objects.filter(purpose="batch_output").count() == 1


def test_if_two_workers_assemble_a_batch_the_files_of_the_faster_one_are_kept(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = make_batch()
    batch_validate(batch=batch)
    batch_cancel(batch=batch)
    publish = assemble._publish

    def publish_after_another_worker(*args: Any, **values: Any) -> None:
        """Before this worker publishes, a shard is committed and another worker assembles the batch."""
        monkeypatch.setattr(assemble, "_publish", publish)
        commit_shard(batch, 0, tmp_path)
        batch_assemble(batch=Batch.objects.get(pk=batch.pk), final="cancelled")
        publish(*args, **values)

    monkeypatch.setattr(assemble, "_publish", publish_after_another_worker)
    batch_assemble(batch=batch, final="cancelled")

    assert ids_of(batch.output_file) == ["row-0", "row-1"]
    assert ids_of(batch.error_file) == ["row-2", "row-3", "row-4"]
    assert (batch.completed, batch.failed, batch.unanswered) == (2, 0, 3)
    assert File.objects.filter(purpose="batch_output").count() == 2


@pytest.mark.parametrize(
    "entries",
    [
        [entry(0)],  # a missing row
        [entry(0), entry(0)],  # a repeated row
        [entry(1), entry(0)],  # the wrong order
        [entry(0), entry(1), entry(2)],  # a row of no shard
        [entry(0), entry(1, custom_id="row-9")],  # the wrong id
        [],
    ],
)
def test_results_are_not_published_if_a_shard_has_the_wrong_rows(
    db: None, tmp_path: Path, entries: list[dict[str, Any]]
) -> None:
    batch = make_batch(num_rows=2)  # has one shard, whose file must hold the rows 0 and 1 in this order
    batch_validate(batch=batch)
    put_shard(JobShard.objects.get(job=batch.job), entries, tmp_path)

    with pytest.raises(ResultsError):
        batch_assemble(batch=batch, final="completed")

    batch.refresh_from_db()
    assert (batch.status, batch.output_file) == ("finalizing", None)


def test_results_are_not_published_if_a_shard_was_never_committed(db: None, tmp_path: Path) -> None:
    batch = make_batch()
    batch_validate(batch=batch)
    commit_shard(batch, 0, tmp_path)

    with pytest.raises(ResultsError, match="no committed result"):
        batch_assemble(batch=batch, final="completed")


def test_a_cancelled_batch_ends_as_cancelled_even_if_its_job_completed(db: None, tmp_path: Path) -> None:
    batch = make_batch(num_rows=1)
    batch_validate(batch=batch)
    commit_shard(batch, 0, tmp_path)
    batch_cancel(batch=batch)
    assert Job.objects.get(pk=batch.job_id).cancel_requested_at is not None

    batch_assemble(batch=batch, final="completed")

    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None
    assert ids_of(batch.output_file) == ["row-0"]


def test_a_batch_cancelled_before_validation_ends_without_files(db: None) -> None:
    batch = make_batch()
    batch_cancel(batch=batch)

    assert not batch_validate(batch=batch)
    batch_assemble(batch=batch, final="cancelled")

    assert (batch.status, batch.output_file, batch.error_file) == ("cancelled", None, None)


def test_the_error_of_a_job_that_failed_before_validation_becomes_the_error_of_its_batch(db: None) -> None:
    batch = make_batch()

    batch_assemble(batch=batch, final="failed", error={"code": "worker_crash_loop", "message": "It crashed."})

    assert batch.status == "failed"
    assert batch.errors == [{"code": "worker_crash_loop", "line": None, "message": "It crashed.", "param": None}]


def test_cancelling_a_batch_again_is_accepted_until_the_batch_has_ended(db: None) -> None:
    cancelled = make_batch()
    batch_cancel(batch=cancelled)
    assert batch_cancel(batch=cancelled).status == "cancelling"
    failed = make_batch()
    batch_assemble(batch=failed, final="failed")

    with pytest.raises(ApiError) as refused:
        batch_cancel(batch=failed)

    assert (refused.value.status, refused.value.code) == (400, "invalid_batch_status")


def test_the_first_shards_are_small_so_that_progress_is_committed_early(
    organization: Organization, settings: Settings
) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 16})
    batch = make_batch(organization, num_rows=50)

    assert batch_validate(batch=batch)

    shards = JobShard.objects.filter(job=batch.job).order_by("shard_no").values_list("row_from", "row_to")
    assert list(shards) == [(0, 4), (4, 12), (12, 28), (28, 44), (44, 50)]


def test_answers_cut_off_at_a_token_limit_are_counted_and_the_place_of_each_cut_is_stored(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    def cut(row: int, within: str, *, continued: bool = False, finish_reason: str = "length") -> dict[str, Any]:
        where = {"within": within, "continued": continued}
        return entry(row) | {"finish_reason": finish_reason, "cut": where}

    batch = make_batch(organization, on_truncation="drop")
    assert batch_validate(batch=batch)
    first, second, third = JobShard.objects.filter(job=batch.job)
    put_shard(first, [cut(0, "trace"), cut(1, "trace", continued=True, finish_reason="stop")], tmp_path)
    put_shard(second, [cut(2, "answer"), cut(3, "answer", continued=True)], tmp_path)
    put_shard(third, [entry(4)], tmp_path)  # as a worker of an earlier release writes it
    assert client.get(f"/v1/batches/{batch.pk}").json()["truncated"] is None

    batch_assemble(batch=batch, final="completed")

    counts = client.get(f"/v1/batches/{batch.pk}").json()["truncated"]
    assert counts == {"in_trace": 2, "in_answer": 2, "continued": 2, "unfinished": 3, "dropped": 3}
    with get_storage().open(batch.tokens_key) as tokens:
        cuts = [json.loads(line).get("cut") for line in tokens.read().splitlines()]
    assert [None if where is None else where["within"] for where in cuts] == ["trace"] * 2 + ["answer"] * 2 + [None]
