"""A batch that ended early is resumed by a new batch, which copies the finished rows and runs the others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from control.billing.ledger.models import LedgerLine
from control.billing.usage.services import price_set
from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.core.storage.backends import FolderStorage, get_storage
from control.data.files.models import File
from control.data.files.services import file_delete
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.services import job_claim
from control.queue.jobs.shards import ShardRows
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent
from control.workflows.batches.assemble import Final, batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_commit_shard, batch_resume, batch_validate
from control.workflows.batches.tidy import batches_tidy
from tests.control.factories import make_base_model, make_organization
from tests.control.workflows.batches.helpers import commit_shard, entry, ids_of, lines_of, make_batch, put_shard
from tests.workers.supervisor.live import read_object


@pytest.fixture(autouse=True)
def two_rows_per_shard(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 2})


def make_ended_batch(
    tmp_path: Path, organization: Organization | None = None, *, final: Final = "failed", num_rows: int = 7
) -> Batch:
    """Makes a batch that ended early. Its shards 0 (rows 0, 1) and 2 (rows 4, 5) are finished; row 4 has an error."""
    batch = make_batch(organization, num_rows=num_rows)
    batch_validate(batch=batch)
    commit_shard(batch, 0, tmp_path)
    commit_shard(batch, 2, tmp_path, failed_rows=frozenset({4}))
    batch_assemble(batch=batch, final=final)
    Job.objects.filter(pk=batch.job_id).update(status="failed", finished_at=batch.created_at)
    batches_tidy()
    return batch


def finish(batch: Batch, tmp_path: Path) -> None:
    """Validates the batch and runs its open shards."""
    assert batch_validate(batch=batch)
    for shard in JobShard.objects.filter(job=batch.job, storage_key=""):
        commit_shard(batch, shard.shard_no, tmp_path)
    batch_assemble(batch=batch, final="completed")


def fields_of(batch: Batch) -> Mapping[str, Any]:
    return Batch.objects.filter(pk=batch.pk).values().get()


@pytest.mark.parametrize("final", ["failed", "expired", "cancelled"])
def test_a_resumed_batch_copies_finished_rows_byte_for_byte_and_runs_only_the_other_rows(
    db: None, tmp_path: Path, final: Final
) -> None:
    old = make_ended_batch(tmp_path, final=final)
    before = fields_of(old)
    assert old.output_file is not None
    old_output = read_object(old.output_file.storage_key)

    new = batch_resume(batch=old)
    batch_validate(batch=new)

    shards = JobShard.objects.filter(job=new.job)
    assert [(s.row_from, s.row_to, bool(s.storage_key)) for s in shards] == [
        (0, 2, True),
        (2, 4, False),
        (4, 6, True),
        (6, 7, False),
    ]
    finish(new, tmp_path)
    assert new.output_file is not None
    assert ids_of(new.output_file) == ["row-0", "row-1", "row-2", "row-3", "row-5", "row-6"]
    lines = read_object(new.output_file.storage_key).splitlines(keepends=True)
    assert b"".join(lines[i] for i in (0, 1, 4)) == old_output
    assert lines_of(new.error_file) == [entry(4, ok=False)["output"]]
    tokens = read_object(new.tokens_key).splitlines()
    assert len(tokens) == 6
    assert (new.total, new.completed, new.failed, new.copied) == (7, 6, 1, 4)
    assert fields_of(old) == before


def test_only_the_new_rows_of_a_resumed_batch_are_charged(db: None, tmp_path: Path) -> None:
    old = make_ended_batch(tmp_path)
    assert old.base_model is not None
    price_set(base_model_id=old.base_model.pk, input_nanousd=1, output_nanousd=1, batch_percent=100)
    new = batch_resume(batch=old)
    batch_validate(batch=new)
    claim = job_claim(job_id=new.job_id, worker="worker")
    assert claim is not None
    usage = {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
    copied, open_shard = JobShard.objects.filter(job=new.job).order_by("row_from")[:2]

    for shard in (copied, open_shard):
        rows = ShardRows(completed=2, failed=0, usage=usage)
        batch_commit_shard(batch=new, claim=claim, shard_no=shard.shard_no, storage_key="x", rows=rows)

    lines = LedgerLine.objects.filter(object_id=new.pk)
    assert sorted(lines.values_list("sequence", "count")) == [("1", 4), ("1", 6)]
    assert fields_of(new)["cost_nanousd"] == 10
    Job.objects.filter(pk=new.job_id).update(status="queued")
    put_shard(open_shard, [entry(2), entry(3)], tmp_path)
    finish(new, tmp_path)
    assert new.usage == {"input_tokens": 9, "output_tokens": 6, "total_tokens": 15}  # of the rows 2, 3 and 6


def test_a_row_that_crashed_its_worker_is_run_again_in_the_resumed_batch(db: None, tmp_path: Path) -> None:
    old = make_batch(num_rows=2)
    batch_validate(batch=old)
    error = {"code": "row_crashed_worker", "message": "It crashed."}
    crashed = {**entry(1, ok=False), "output": {**entry(1)["output"], "response": None, "error": error}}
    put_shard(JobShard.objects.get(job=old.job), [entry(0), crashed], tmp_path)
    batch_assemble(batch=old, final="cancelled")
    new = batch_resume(batch=old)

    finish(new, tmp_path)

    assert ids_of(new.output_file) == ["row-0", "row-1"]
    assert new.error_file is None


def test_a_resumed_batch_that_ends_early_can_be_resumed_itself(db: None, tmp_path: Path) -> None:
    first = make_ended_batch(tmp_path)
    second = batch_resume(batch=first)
    batch_validate(batch=second)
    commit_shard(second, 1, tmp_path)
    batch_assemble(batch=second, final="expired")

    third = batch_resume(batch=second)
    finish(third, tmp_path)

    assert third.copied == 6
    assert ids_of(third.output_file) == [f"row-{row}" for row in (0, 1, 2, 3, 5, 6)]
    assert ids_of(third.error_file) == ["row-4"]


def test_the_next_attempt_repeats_a_copy_that_crashed(
    db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = batch_resume(batch=make_ended_batch(tmp_path))
    put_file, keys = FolderStorage.put_file, list[str]()

    def crash_at_the_second_shard(storage: FolderStorage, key: str, path: Path) -> None:
        put_file(storage, key, path)
        keys.append(key)
        if "/copied-4" in key:
            raise RuntimeError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr(FolderStorage, "put_file", crash_at_the_second_shard)
        with pytest.raises(RuntimeError):
            batch_validate(batch=new)
    assert len(keys) == 2
    assert not JobShard.objects.filter(job=new.job).exists()

    finish(new, tmp_path)

    assert ids_of(new.output_file) == [f"row-{row}" for row in (0, 1, 2, 3, 5, 6)]


@pytest.mark.parametrize("which", ["output_file", "error_file", "input_file"])
def test_a_batch_whose_files_are_deleted_cannot_be_resumed(
    client: Client, organization: Organization, tmp_path: Path, which: str
) -> None:
    old = make_ended_batch(tmp_path, organization)
    file_delete(file=getattr(old, which))

    response = client.post(f"/v1/batches/{old.pk}/resume")

    code = "file_not_found" if which == "input_file" else "results_deleted"
    assert (response.status_code, response.json()["error"]["code"]) == (404, code)


@pytest.mark.parametrize("which", ["output", "errors", "tokens"])
def test_the_new_batch_fails_if_results_are_deleted_before_they_are_copied(
    db: None, tmp_path: Path, which: str
) -> None:
    old = make_ended_batch(tmp_path)
    new = batch_resume(batch=old)
    assert old.output_file is not None
    assert old.error_file is not None
    keys = {"output": old.output_file.storage_key, "errors": old.error_file.storage_key, "tokens": old.tokens_key}
    get_storage().delete(keys[which])  # as if the copy had begun before the file was marked as deleted

    assert not batch_validate(batch=new)

    assert (new.status, [error["code"] for error in new.errors or ()]) == ("failed", ["results_deleted"])
    assert not JobShard.objects.filter(job=new.job).exists()


def test_a_batch_that_has_not_ended_or_is_completed_or_has_no_rows_cannot_be_resumed(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    validating = make_batch(organization)
    never_validated = make_batch(make_organization())
    batch_assemble(batch=never_validated, final="failed")
    completed = make_ended_batch(tmp_path, make_organization())
    Batch.objects.filter(pk=completed.pk).update(status="completed")

    assert client.post(f"/v1/batches/{validating.pk}/resume").json()["error"]["code"] == "invalid_batch_status"
    for batch, code in [(never_validated, "batch_without_rows"), (completed, "invalid_batch_status")]:
        with pytest.raises(ApiError) as refusal:
            batch_resume(batch=Batch.objects.get(pk=batch.pk))
        assert refusal.value.code == code


def test_a_resumed_batch_keeps_its_engine_options(db: None, tmp_path: Path) -> None:
    options = EngineOptions(weights="int8", max_concurrency=32, draft_budget=6).model_dump()
    old = make_ended_batch(tmp_path)
    old.engine = options
    old.save()

    resumed = batch_resume(batch=old)

    assert resumed.engine == options
    assert resumed.job.params["max_batch_size"] == 32


def test_a_batch_can_be_resumed_again_only_after_the_resumed_batch_has_ended_early(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    old = make_ended_batch(tmp_path, organization)
    path = f"/v1/batches/{old.pk}/resume"
    first = client.post(path, headers={"Idempotency-Key": "once"}).json()
    assert (first["resumed_from"], first["status"]) == (old.pk, "validating")
    assert client.post(path, headers={"Idempotency-Key": "once"}).json() == first

    second = client.post(path)

    assert (second.status_code, second.json()["error"]["code"]) == (409, "batch_already_resumed")
    assert first["id"] in second.json()["error"]["message"]
    Batch.objects.filter(pk=first["id"]).update(status="failed")
    assert client.post(path).status_code == 200
    actions = AuditEvent.objects.filter(action="batch.resume").order_by("pk")
    assert list(actions.values_list("object_id", flat=True)) == list(
        old.resumptions.order_by("pk").values_list("pk", flat=True)
    )


def test_a_batch_of_a_missing_replaced_or_unpriced_model_cannot_be_resumed(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    old = make_ended_batch(tmp_path, organization)
    model = old.base_model
    assert model is not None
    path = f"/v1/batches/{old.pk}/resume"

    type(model).objects.filter(pk=model.pk).update(status="failed")
    assert client.post(path).json()["error"]["code"] == "model_not_found"
    type(model).objects.filter(pk=model.pk).update(status="ready", organization=None)
    make_base_model("tiny", organization)  # hides the shared model of the same name
    assert client.post(path).json()["error"]["code"] == "model_changed"
    type(model).objects.exclude(pk=model.pk).delete()
    price_set(base_model_id="other", input_nanousd=1, output_nanousd=1)
    assert client.post(path).json()["error"]["code"] == "model_not_priced"
    assert not old.resumptions.exists()


def test_a_resumed_batch_counts_towards_the_quota_of_queued_jobs(
    client: Client, organization: Organization, tmp_path: Path, settings: Settings
) -> None:
    old = make_ended_batch(tmp_path, organization)
    settings.SLIPSTREAM = get_config().model_copy(update={"max_queued_jobs": 0})

    response = client.post(f"/v1/batches/{old.pk}/resume")

    assert (response.status_code, response.json()["error"]["code"]) == (429, "queued_jobs_quota_exceeded")


def test_the_request_to_resume_a_batch_reads_no_rows(
    client: Client, organization: Organization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the request's queries does not depend on the number of rows, and the request opens no stored
    object."""
    batches = [make_ended_batch(tmp_path, make_organization(), num_rows=num_rows) for num_rows in (7, 7, 400)]
    Batch.objects.update(organization=organization, base_model=make_base_model("tiny", organization))
    for model in (File, Job):
        model._default_manager.update(organization=organization)

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the request opened a stored object")

    monkeypatch.setattr(FolderStorage, "open", refuse)
    monkeypatch.setattr(FolderStorage, "put_file", refuse)
    num_queries = []
    for batch in batches:
        with CaptureQueriesContext(connection) as queries:
            assert client.post(f"/v1/batches/{batch.pk}/resume").status_code == 200
        num_queries.append(len(queries))
    assert num_queries[1] == num_queries[2]  # the first request also writes rows of the key and of the organization
