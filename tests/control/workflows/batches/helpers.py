"""Creates batches, and stores the results of their shards as a worker does, without running a worker."""

import json
from pathlib import Path
from typing import Any

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.queue.jobs.models import JobShard
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create
from tests.control.factories import chat_row, make_base_model, make_file, make_organization

CHAT = "/v1/chat/completions"


def make_batch(organization: Organization | None = None, num_rows: int = 5, **values: Any) -> Batch:
    """A batch whose input file is not validated yet. The organization's only model is `tiny`."""
    organization = organization or make_organization()
    make_base_model("tiny", organization)
    file = make_file(organization, [chat_row(f"row-{i}") for i in range(num_rows)])
    return batch_create(organization=organization, input_file=file, endpoint=CHAT, **values)


def commit_shard(batch: Batch, shard_no: int, tmp_path: Path, *, failed_rows: frozenset[int] = frozenset()) -> None:
    """Stores the shard's result file, with an error for each of `failed_rows` and an answer for every other row."""
    shard = JobShard.objects.get(job=batch.job, shard_no=shard_no)
    rows = range(shard.row_from, shard.row_to)
    put_shard(shard, [entry(row, ok=row not in failed_rows) for row in rows], tmp_path)


def put_shard(shard: JobShard, entries: list[dict[str, Any]], tmp_path: Path) -> None:
    """Stores `entries` as the shard's result file and marks the shard as committed."""
    path = tmp_path / f"{shard.pk}.jsonl"
    path.write_text("".join(f"{json.dumps(item)}\n" for item in entries))
    key = f"jobs/{shard.job_id}/shards/{shard.shard_no}.1.jsonl"
    get_storage().put_file(key, path)
    num_ok = sum(item["ok"] for item in entries)
    # Each answer counts as 3 tokens of the prompt and 2 generated tokens.
    usage = {"prompt_tokens": 3 * num_ok, "completion_tokens": 2 * num_ok, "total_tokens": 5 * num_ok}
    JobShard.objects.filter(pk=shard.pk).update(
        storage_key=key, fence=1, completed=num_ok, failed=len(entries) - num_ok, usage=usage
    )


def entry(row: int, *, ok: bool = True, custom_id: str | None = None) -> dict[str, Any]:
    """One line of a shard's result file."""
    custom_id = custom_id or f"row-{row}"
    response = {"status_code": 200 if ok else 400, "request_id": f"req_{row}", "body": {"content": f"héllo {row}"}}
    output = {"id": f"batch_req_{row}", "custom_id": custom_id, "response": response, "error": None}
    values: dict[str, Any] = {"row": row, "custom_id": custom_id, "ok": ok, "output": output}
    if ok:
        values |= {"prompt_token_ids": [1, 2, row], "completion_token_ids": [row], "finish_reason": "stop"}
    return values


def lines_of(file: File | None) -> list[dict[str, Any]]:
    assert file is not None
    with get_storage().open(file.storage_key) as source:
        return [json.loads(line) for line in source.read().splitlines()]


def ids_of(file: File | None) -> list[str]:
    return [line["custom_id"] for line in lines_of(file)]
