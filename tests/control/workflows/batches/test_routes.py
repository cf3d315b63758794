"""The responses and errors of the routes of /v1/batches."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from control.core.settings.config import get_config
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create, batch_validate
from control.workflows.distillations.models import Distillation
from tests.control.factories import chat_row, make_base_model, make_file, make_organization
from tests.control.workflows.batches.helpers import CHAT, commit_shard, make_batch


@pytest.fixture(autouse=True)
def two_rows_per_shard(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 2})


def test_request_counts_include_committed_shards(client: Client, organization: Organization, tmp_path: Path) -> None:
    batch = make_batch(organization)
    batch_validate(batch=batch)
    commit_shard(batch, 0, tmp_path, failed_rows=frozenset({1}))

    body = client.get(f"/v1/batches/{batch.pk}").json()

    assert body["request_counts"] == {
        "total": 5,
        "completed": 1,
        "failed": 1,
        "cancelled": 0,
        "expired": 0,
        "pending": 3,
    }
    assert client.get("/v1/batches").json()["data"] == [body]


def test_stored_json_of_an_unknown_shape_is_returned_unchanged(client: Client, organization: Organization) -> None:
    batch = make_batch(organization)
    stored = {"metadata": {"number": 1}, "warnings": {"line": 1}, "errors_by_code": {"bad": "1"}}
    Batch.objects.filter(pk=batch.pk).update(errors=["line 1 is bad"], usage={"tokens": 1}, **stored)
    Job.objects.update(paused={"reason": "cap"})
    distillation = Distillation.objects.create(organization=organization, batch=batch)

    for path in (f"/v1/batches/{batch.pk}", f"/v1/distillations/{distillation.pk}"):
        body = client.get(path).json()
        assert (body["errors"]["data"], body["usage"]["total_tokens"]) == (["line 1 is bad"], 0)
        assert (body["metadata"], body["paused"]) == ({"number": 1}, {"reason": "cap"})
    body = client.get(f"/v1/batches/{batch.pk}").json()
    assert {name: body[name] for name in stored} == stored


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"completion_window": None}, 400, "completion_window"),
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"model": "none"}, 404, "model"),
        ({"metadata": {"k" * 65: "v"}}, 400, "metadata"),
        ({"metadata": {"k\0": "v"}}, 400, "metadata"),
        ({"metadata": {"\ud800": "v"}}, 400, "metadata"),
        ({"metadata": {"k": "\ud800"}}, 400, "metadata.k"),
        ({"metadata": {"k": "v" * 513}}, 400, "metadata.k"),
        ({"metadata": {str(i): "v" for i in range(17)}}, 400, "metadata"),
        ({"metadata": {"k": {}}}, 400, "metadata.k"),
        ({"metadata": "x"}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
    ],
)
def test_an_invalid_request_creates_no_batch(
    client: Client, organization: Organization, change: dict[str, Any], status: int, param: str
) -> None:
    values = {"input_file_id": make_file(organization).pk, "endpoint": CHAT, "completion_window": "24h", **change}

    response = client.post("/v1/batches", values, content_type="application/json")

    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert not Batch.objects.exists()
    assert not Job.objects.exists()


def test_a_file_of_another_purpose_or_organization_is_refused(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    for file, status in [(make_file(organization, purpose="evals"), 400), (make_file(other_organization), 404)]:
        values = {"input_file_id": file.pk, "endpoint": CHAT, "completion_window": "24h"}
        response = client.post("/v1/batches", values, content_type="application/json")
        assert (response.status_code, response.json()["error"]["param"]) == (status, "input_file_id")


def test_batches_of_another_organization_are_not_found(client: Client, other_organization: Organization) -> None:
    batch = make_batch(other_organization)

    assert client.get(f"/v1/batches/{batch.pk}").status_code == 404
    assert client.post(f"/v1/batches/{batch.pk}/cancel").status_code == 404
    assert client.get("/v1/batches").json()["data"] == []
    batch.refresh_from_db()
    assert batch.status == "validating"


def test_models_of_another_organization_are_not_found(db: None) -> None:
    other = make_organization()
    make_base_model("secret", other)
    own = make_organization()
    make_base_model("tiny", own)
    file = make_file(own, [chat_row("a", model="secret")])
    batch = batch_create(organization=own, input_file=file, endpoint=CHAT)

    assert not batch_validate(batch=batch)

    assert [error["code"] for error in batch.errors or ()] == ["model_not_found"]
