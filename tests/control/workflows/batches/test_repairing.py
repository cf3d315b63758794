"""An ended batch is repaired by a new batch, which answers rows of the named classes again and keeps all other results.

The ended batch of these tests has one row of each kind, in this order: `KINDS`.
"""

from collections.abc import Iterable
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from control.billing.ledger.models import LedgerLine
from control.billing.usage.services import price_set
from control.core.settings.config import get_config
from control.data.files.services import file_delete
from control.queue.jobs.models import Job, JobShard
from control.queue.jobs.services import job_claim
from control.queue.jobs.shards import ShardRows
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent
from control.workflows.batches.assemble import Final, batch_assemble
from control.workflows.batches.choosing import Choice, Rerun, RowClass
from control.workflows.batches.models import Batch
from control.workflows.batches.results import read_json_lines
from control.workflows.batches.services import batch_commit_shard, batch_repair, batch_resume, batch_validate
from tests.control.factories import client_of
from tests.control.workflows.batches.helpers import CHAT, entry, lines_of, make_batch, put_shard
from tests.workers.supervisor.live import read_object

KINDS = ("answered", "cut", "refused", "crashed", "lost", "never ran")
IN_CLASS = {
    RowClass.UNFINISHED: {"crashed", "lost", "never ran"},
    RowClass.FAILED: {"refused", "crashed", "lost"},
    RowClass.CUT: {"cut"},
}
CODES = {"crashed": "row_crashed_worker", "lost": "result_lost", "never ran": "batch_expired"}
CUT_TOKENS = 4  # the length of the cut answer
SETS_OF_CLASSES = list(chain.from_iterable(combinations(RowClass, size) for size in (1, 2, 3)))


@pytest.fixture(autouse=True)
def two_rows_per_shard(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 2})


def result(row: int, kind: str, *, num_tokens: int = CUT_TOKENS) -> dict[str, Any]:
    """The result of a row in the form of an entry in a shard."""
    values = entry(row, ok=kind in ("answered", "cut"))
    if kind == "cut":
        values |= {"finish_reason": "length", "completion_token_ids": list(range(num_tokens))}
        values["output"]["response"]["body"]["seed"] = 77
    elif kind in CODES:
        values["output"] |= {"response": None, "error": {"code": CODES[kind], "message": "It has no response."}}
    return values


def rerun_rows(classes: Iterable[RowClass]) -> set[int]:
    return {row for row, kind in enumerate(KINDS) if any(kind in IN_CLASS[name] for name in classes)}


def make_ended_batch(tmp_path: Path, organization: Organization | None = None, *, final: Final = "expired") -> Batch:
    batch = make_batch(organization, num_rows=len(KINDS))
    batch_validate(batch=batch)
    JobShard.objects.filter(job=batch.job).delete()
    shard = JobShard.objects.create(job=batch.job, shard_no=0, row_from=0, row_to=len(KINDS))
    put_shard(shard, [result(row, kind) for row, kind in enumerate(KINDS)], tmp_path)
    batch_assemble(batch=batch, final=final)
    return batch


def source_rows(batch: Batch) -> list[dict[str, Any]]:
    """The normalised rows that the batch's workers read."""
    return list(read_json_lines(batch.job.params["rows_key"]))


def finish(batch: Batch, tmp_path: Path) -> None:
    """Validates the batch and answers its open shards."""
    assert batch_validate(batch=batch)
    for shard in JobShard.objects.filter(job=batch.job, storage_key=""):
        put_shard(shard, [entry(row) for row in range(shard.row_from, shard.row_to)], tmp_path)
    batch_assemble(batch=batch, final="completed")


def results_by_row(batch: Batch) -> dict[str, Any]:
    """All lines of the output and error files by custom_id, which must be unique and sorted in each file."""
    lines = [lines_of(file) for file in (batch.output_file, batch.error_file) if file is not None]
    for file_lines in lines:
        ids = [line["custom_id"] for line in file_lines]
        assert ids == sorted(set(ids))
    merged = [line for file_lines in lines for line in file_lines]
    by_id = {line["custom_id"]: line for line in merged}
    assert len(by_id) == len(merged)
    return by_id


@pytest.mark.parametrize("classes", SETS_OF_CLASSES)
def test_a_repaired_batch_has_each_row_once_and_answers_only_the_rows_of_the_named_classes(
    db: None, tmp_path: Path, classes: tuple[RowClass, ...]
) -> None:
    old = make_ended_batch(tmp_path)
    before = results_by_row(old)

    new = batch_repair(batch=old, rows=classes, max_tokens=100)
    finish(new, tmp_path)

    chosen = rerun_rows(classes)
    after = results_by_row(new)
    assert set(after) == set(before) == {f"row-{row}" for row in range(len(KINDS))}
    for row in range(len(KINDS)):
        expected = entry(row)["output"] if row in chosen else before[f"row-{row}"]
        assert after[f"row-{row}"] == expected
    assert (new.total, new.copied) == (len(KINDS), len(KINDS) - len(chosen))
    assert new.completed + new.failed == len(KINDS)
    old.refresh_from_db()
    assert results_by_row(old) == before


def test_kept_answers_of_a_repaired_batch_keep_their_bytes_and_token_ids(db: None, tmp_path: Path) -> None:
    old = make_ended_batch(tmp_path)
    assert old.output_file is not None
    old_output, old_tokens = read_object(old.output_file.storage_key), read_object(old.tokens_key)

    new = batch_repair(batch=old, rows=["failed"])
    finish(new, tmp_path)

    assert new.output_file is not None
    assert read_object(new.output_file.storage_key).startswith(old_output)
    assert read_object(new.tokens_key).startswith(old_tokens)
    assert new.truncated == {"in_trace": 0, "in_answer": 0, "continued": 0, "unfinished": 1}


def test_only_the_rows_that_are_answered_again_are_charged(db: None, tmp_path: Path) -> None:
    old = make_ended_batch(tmp_path, final="completed")
    assert old.base_model is not None
    price_set(base_model_id=old.base_model.pk, input_nanousd=1, output_nanousd=1, batch_percent=100)
    new = batch_repair(batch=old, rows=["cut"], max_tokens=100)
    batch_validate(batch=new)
    claim = job_claim(job_id=new.job_id, worker="worker")
    assert claim is not None

    usage = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
    for shard in JobShard.objects.filter(job=new.job):
        rows = ShardRows(completed=1, failed=0, usage=usage)
        batch_commit_shard(batch=new, claim=claim, shard_no=shard.shard_no, storage_key="x", rows=rows)

    assert [shard.row_to - shard.row_from for shard in JobShard.objects.filter(job=new.job)] == [1, 1, 4]
    lines = LedgerLine.objects.filter(object_id=new.pk)
    assert sorted(lines.values_list("sequence", "count")) == [("1", 3), ("1", 9)]
    assert Batch.objects.get(pk=new.pk).cost_nanousd == 12


def test_new_answers_get_the_limit_and_a_longer_answer_gets_the_seed_of_the_cut_one(db: None, tmp_path: Path) -> None:
    old = make_ended_batch(tmp_path)

    new = batch_repair(batch=old, rows=["cut", "failed"], max_tokens=100)
    batch_validate(batch=new)

    rows = source_rows(new)
    changes = [{name: row["body"].get(name) for name in ("max_tokens", "seed")} for row in rows]
    unchanged, limited = {"max_tokens": None, "seed": None}, {"max_tokens": 100, "seed": None}
    assert changes == [unchanged, {"max_tokens": 100, "seed": 77}, limited, limited, limited, unchanged]
    assert [row.get("earlier_attempts") for row in rows] == [None, 1, 1, 1, 1, None]


def test_the_token_limit_of_a_repair_replaces_max_tokens_and_max_completion_tokens() -> None:
    line = b'{"body":{"max_tokens":3,"max_completion_tokens":4,"seed":1}}\n'

    assert Rerun(earlier_attempts=2, max_tokens=9).applied_to(line) == (
        b'{"body":{"max_tokens":9,"seed":1},"earlier_attempts":2}\n'
    )
    assert Rerun(earlier_attempts=0).applied_to(line).startswith(line[:-2])


def test_each_line_says_how_many_batches_have_run_its_row(db: None, tmp_path: Path) -> None:
    first = make_batch(num_rows=2)
    batch_validate(batch=first)
    shard = JobShard.objects.get(job=first.job)
    JobShard.objects.filter(pk=shard.pk).update(row_to=1)
    JobShard.objects.create(job=first.job, shard_no=9, row_from=1, row_to=2)
    shard.refresh_from_db()
    refused = entry(0, ok=False)
    refused["output"]["attempts"] = 1
    put_shard(shard, [refused], tmp_path)
    batch_assemble(batch=first, final="expired")
    assert [line["attempts"] for line in results_by_row(first).values()] == [1, 0]

    second = batch_repair(batch=first, rows=["failed", "unfinished"])
    batch_validate(batch=second)
    assert [row["earlier_attempts"] for row in source_rows(second)] == [1, 0]
    batch_assemble(batch=second, final="expired")

    assert [line["attempts"] for line in results_by_row(second).values()] == [1, 0]


def test_a_repaired_batch_that_ends_early_is_resumed_with_its_limit(db: None, tmp_path: Path) -> None:
    repaired = batch_repair(batch=make_ended_batch(tmp_path), rows=["cut", "failed"], max_tokens=100)
    batch_validate(batch=repaired)
    batch_assemble(batch=repaired, final="failed")

    resumed = batch_resume(batch=repaired)
    batch_validate(batch=resumed)

    assert resumed.repair == {"rows": ["unfinished"], "max_tokens": 100}
    # The row that never ran in the first batch was not chosen. It is unfinished, so that it is answered now.
    assert [row["body"].get("max_tokens") for row in source_rows(resumed)] == [None, 100, 100, 100, 100, 100]


def test_a_batch_keeps_its_priority_when_it_is_repaired(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    old = make_ended_batch(tmp_path, organization)
    body = {"input_file_id": old.input_file_id, "endpoint": CHAT, "completion_window": "24h", "priority": "high"}
    created = client.post("/v1/batches", body, content_type="application/json").json()
    assert created["priority"] == "high"
    refused = client.post("/v1/batches", {**body, "priority": "urgent"}, content_type="application/json")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
    Job.objects.filter(pk=old.job_id).update(priority=10, status="failed")

    response = client.post(f"/v1/batches/{old.pk}/repair", {"rows": ["failed"]}, content_type="application/json")

    assert response.json()["priority"] == "high"
    assert (response.json()["queue_position"], created["queue_position"]) == (2, 1)


def test_a_resumed_batch_answers_unfinished_rows_with_the_limits_of_the_input_file(db: None, tmp_path: Path) -> None:
    resumed = batch_resume(batch=make_ended_batch(tmp_path))
    batch_validate(batch=resumed)

    assert resumed.repair is None
    assert resumed.copied == 3
    assert not any("max_tokens" in row["body"] for row in source_rows(resumed))


def test_a_completed_batch_is_repaired_over_the_api(client: Client, organization: Organization, tmp_path: Path) -> None:
    old = make_ended_batch(tmp_path, organization, final="completed")
    path, body = f"/v1/batches/{old.pk}/repair", {"rows": ["cut", "failed", "cut"], "max_tokens": 100}
    headers = {"Idempotency-Key": "once"}

    first = client.post(path, body, content_type="application/json", headers=headers).json()

    assert client.post(path, body, content_type="application/json", headers=headers).json() == first
    assert (first["resumed_from"], first["status"]) == (old.pk, "validating")
    assert first["repair"] == {"rows": ["failed", "cut"], "max_tokens": 100}
    second = client.post(path, body, content_type="application/json")
    assert (second.status_code, second.json()["error"]["code"]) == (409, "batch_already_resumed")
    assert f"repaired by batch {first['id']}" in second.json()["error"]["message"]
    assert AuditEvent.objects.get(action="batch.repair").object_id == first["id"]
    assert client.get(f"/v1/batches/{old.pk}").json()["repair"] is None


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "rows"),
        ({"rows": []}, "invalid_value", "rows"),
        ({"rows": ["slow"]}, "invalid_value", "rows.0"),
        ({"rows": ["failed"], "max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"rows": ["failed"], "max_tokens": True}, "invalid_value", "max_tokens"),
        ({"rows": ["failed"], "temperature": 0}, "unknown_parameter", "temperature"),
        ({"rows": ["cut"]}, "missing_required_parameter", "max_tokens"),
        ({"rows": ["cut"], "max_tokens": 256}, "max_tokens_too_large", "max_tokens"),
    ],
)
def test_an_invalid_repair_is_refused(
    client: Client, organization: Organization, tmp_path: Path, body: dict[str, Any], code: str, param: str
) -> None:
    old = make_ended_batch(tmp_path, organization)
    assert old.base_model is not None
    type(old.base_model).objects.update(sizes={"max_positions": 256})

    response = client.post(f"/v1/batches/{old.pk}/repair", body, content_type="application/json")

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert not old.resumptions.exists()


def test_a_batch_that_runs_or_has_no_rows_to_repair_or_no_stored_results_is_not_repaired(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    batch = make_batch(organization)
    path = f"/v1/batches/{batch.pk}/repair"

    def refusal(*rows: str) -> tuple[int, str]:
        response = client.post(path, {"rows": rows, "max_tokens": 9}, content_type="application/json")
        return response.status_code, response.json()["error"]["code"]

    assert refusal("failed") == (400, "invalid_batch_status")
    finish(batch, tmp_path)
    for name in RowClass:
        assert refusal(name) == (400, "nothing_to_repair")
    Batch.objects.filter(pk=batch.pk).update(errors_by_code={"batch_expired": 1})
    assert refusal("failed", "cut") == (400, "nothing_to_repair")
    assert batch.output_file is not None
    file_delete(file=batch.output_file)
    assert refusal("unfinished") == (404, "results_deleted")
    Batch.objects.filter(pk=batch.pk).update(status="failed", total=0)
    assert refusal("failed") == (400, "batch_without_rows")


def test_another_organizations_batch_cannot_be_repaired(
    other_organization: Organization, organization: Organization, tmp_path: Path
) -> None:
    old = make_ended_batch(tmp_path, other_organization)
    path, body = f"/v1/batches/{old.pk}/repair", {"rows": ["failed"]}

    response = client_of(organization).post(path, body, content_type="application/json")

    assert (response.status_code, response.json()["error"]["code"]) == (404, "batch_not_found")
    assert not old.resumptions.exists()
    assert Job.objects.count() == 1


@given(
    kind=st.sampled_from(KINDS),
    classes=st.frozensets(st.sampled_from(RowClass), min_size=1),
    num_tokens=st.integers(1, 20),
    max_tokens=st.none() | st.integers(1, 20),
    context=st.none() | st.integers(4, 24),
    set_by=st.sampled_from(["context", "generation_config", None]),
)
def test_a_row_is_chosen_if_its_class_is_named_and_a_cut_answer_can_become_longer(
    kind: str,
    classes: frozenset[RowClass],
    num_tokens: int,
    max_tokens: int | None,
    context: int | None,
    set_by: str | None,
) -> None:
    value = result(0, kind, num_tokens=num_tokens)
    if kind == "cut" and set_by is not None:
        value["output"]["response"]["body"]["limits"] = {"max_tokens": num_tokens, "set_by": set_by}

    rerun = Choice(classes=classes, max_tokens=max_tokens, context=context).rerun(value)

    is_named = any(kind in IN_CLASS[name] for name in classes)
    can_grow = max_tokens is not None and max_tokens > num_tokens and set_by != "context"
    fits = context is None or max_tokens is None or 3 + max_tokens <= context  # the prompt has three tokens
    assert (rerun is not None) == (is_named and (kind != "cut" or (can_grow and fits)))
    if rerun is not None:
        assert rerun == Rerun(
            earlier_attempts=int(kind != "never ran"), max_tokens=max_tokens, seed=77 if kind == "cut" else None
        )
