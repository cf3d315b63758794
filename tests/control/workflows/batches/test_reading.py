"""GET /v1/batches/{id}/results lists finished rows in input order, before and after the end of the batch."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.http import StreamingHttpResponse
from django.test import AsyncClient, Client
from pytest_django import Settings

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.data.files.services import file_delete
from control.queue.jobs.models import Job, JobShard
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import api_key_revoke
from control.workflows.batches import reading
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel, batch_validate
from control.workflows.batches.tidy import batches_tidy
from tests.control.factories import client_of, make_key
from tests.control.workflows.batches.helpers import commit_shard, make_batch
from tests.workers.support import write_lines


@pytest.fixture(autouse=True)
def two_rows_per_shard(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 2})


@pytest.fixture
def batch(organization: Organization) -> Batch:
    """A batch of seven rows in four shards."""
    batch = make_batch(organization, num_rows=7)
    batch_validate(batch=batch)
    return batch


def read_rows(client: Client, batch: Batch, **query: Any) -> list[str]:
    response = client.get(f"/v1/batches/{batch.pk}/results", query)
    assert response.status_code == 200
    return [json.loads(line)["custom_id"] for line in response.getvalue().splitlines()]


def end_job_of(batch: Batch) -> None:
    Job.objects.filter(pk=batch.job_id).update(finished_at=batch.created_at)


def test_rows_are_listed_in_order_up_to_the_first_unfinished_row(client: Client, batch: Batch, tmp_path: Path) -> None:
    assert read_rows(client, batch) == []
    commit_shard(batch, 2, tmp_path)
    assert read_rows(client, batch) == []
    commit_shard(batch, 0, tmp_path, failed_rows=frozenset({1}))

    assert read_rows(client, batch) == ["row-0", "row-1"]
    assert read_rows(client, batch, after=1) == ["row-1"]
    commit_shard(batch, 1, tmp_path)
    assert read_rows(client, batch, after=1) == [f"row-{n}" for n in range(1, 6)]
    assert read_rows(client, batch, after=6) == []


def test_rows_listed_before_the_end_of_a_batch_are_listed_unchanged_after_it(
    client: Client, batch: Batch, tmp_path: Path
) -> None:
    for shard_no in (0, 1):
        commit_shard(batch, shard_no, tmp_path, failed_rows=frozenset({1, 2}))
    url = f"/v1/batches/{batch.pk}/results"
    before = client.get(url).getvalue()
    batch_cancel(batch=batch)
    batch_assemble(batch=batch, final="cancelled")
    end_job_of(batch)
    assert batches_tidy() == 1  # deletes the files of the shards, so the next results come from the result files

    after = client.get(url).getvalue()

    assert before
    assert after.startswith(before)
    assert read_rows(client, batch) == [f"row-{n}" for n in range(7)]
    assert read_rows(client, batch, after=5) == ["row-5", "row-6"]


def test_after_the_deletion_of_its_result_file_a_batch_has_no_results_and_no_working_files(
    client: Client, transactional_db: None, batch: Batch, tmp_path: Path
) -> None:
    rows_key = batch.job.params["rows_key"]
    for shard_no in range(4):
        commit_shard(batch, shard_no, tmp_path)
    shard_keys = list(JobShard.objects.values_list("storage_key", flat=True))
    # An attempt with the fence 7 stored this file of shard 0, but could not commit it because the lease was lost.
    uncommitted_key = f"{shard_keys[0].rpartition('/')[0]}/0.7.jsonl"
    get_storage().put_file(uncommitted_key, write_lines(tmp_path / "uncommitted", []))
    batch_assemble(batch=batch, final="completed")
    tokens_key = batch.tokens_key
    assert batches_tidy() == 0, "the job has not ended, so a worker may still read the rows"
    end_job_of(batch)
    assert batch.output_file is not None
    file_delete(file=batch.output_file)

    assert client.get(f"/v1/batches/{batch.pk}/results").json()["error"]["code"] == "results_deleted"
    batches_tidy()

    assert [key for key in (rows_key, tokens_key, uncommitted_key, *shard_keys) if get_storage().exists(key)] == []
    assert batches_tidy() == 0


def test_a_followed_stream_continues_until_the_batch_ends(
    transactional_db: None, organization: Organization, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(reading, "HEARTBEAT_SECONDS", 0.05)
    _, token = make_key(organization)
    commit_shard(batch, 0, tmp_path)

    async def follow() -> list[bytes]:
        url, headers = f"/v1/batches/{batch.pk}/results", {"Authorization": f"Bearer {token}"}
        response = await AsyncClient().get(url, {"follow": "true"}, headers=headers)
        assert isinstance(response, StreamingHttpResponse)
        chunks: list[bytes] = []
        async for chunk in response:
            chunks.append(chunk)
            if chunk == b"\n" and len(chunks) == 2:  # a heartbeat, which is sent while the next row is unfinished
                await sync_to_async(commit_shard)(batch, 1, tmp_path)
            elif len(chunks) == 3:
                await sync_to_async(batch_assemble)(batch=batch, final="expired")
        # Close the connections of the server's thread, because the database could not be dropped otherwise.
        await sync_to_async(connections.close_all)()
        return chunks

    chunks = asyncio.run(asyncio.wait_for(follow(), 20))

    ids = [[json.loads(line)["custom_id"] for line in chunk.strip().splitlines()] for chunk in chunks]
    assert ids[:3] == [["row-0", "row-1"], [], ["row-2", "row-3"]]
    assert [custom_id for chunk in ids for custom_id in chunk] == [f"row-{n}" for n in range(7)]


def test_a_followed_stream_ends_when_its_key_is_revoked(
    transactional_db: None, organization: Organization, batch: Batch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "POLL_SECONDS", 0.01)
    key, token = make_key(organization)
    commit_shard(batch, 0, tmp_path)

    async def follow() -> list[bytes]:
        url, headers = f"/v1/batches/{batch.pk}/results", {"Authorization": f"Bearer {token}"}
        response = await AsyncClient().get(url, {"follow": "true"}, headers=headers)
        assert isinstance(response, StreamingHttpResponse)
        chunks: list[bytes] = []
        try:
            async for chunk in response:
                chunks.append(chunk)
                await sync_to_async(api_key_revoke)(key=key)
                await sync_to_async(commit_shard)(batch, 1, tmp_path)
        except ConnectionAbortedError:
            return chunks
        finally:
            await sync_to_async(connections.close_all)()
        raise AssertionError("the stream ended as if it were complete")

    chunks = asyncio.run(asyncio.wait_for(follow(), 20))
    assert len(b"".join(chunks).splitlines()) <= 4, "one shard of 2 rows before the revocation, at most one after it"


@pytest.mark.parametrize("query", [{"after": "-1"}, {"after": "x"}, {"follow": "1"}])
def test_an_invalid_query_is_refused(client: Client, batch: Batch, query: dict[str, str]) -> None:
    response = client.get(f"/v1/batches/{batch.pk}/results", query)

    assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(query)))


def test_results_of_another_organization_are_not_found(batch: Batch, other_organization: Organization) -> None:
    assert client_of(other_organization).get(f"/v1/batches/{batch.pk}/results").status_code == 404
