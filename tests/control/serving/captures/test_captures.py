"""Requests are captured only after a customer's opt-in. They expire after the requested hours, and serve as prompts."""

import datetime as dt
import json
import tracemalloc
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.models.catalog.models import Speculator
from control.serving.captures.models import Capture, CapturedRequest
from control.serving.captures.sealing import Sealer
from control.serving.captures.services import (
    MAX_BODY_BYTES,
    capture_end,
    capture_set,
    captures_prune,
    request_capture,
)
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_create
from control.tenants.accounts.models import Organization
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import make_base_model
from tests.control.workflows.pipelines.helpers import end_batch

CHAT = "/v1/chat/completions"


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return deployment_create(organization=organization, name="math", base_model=make_base_model("tiny"))


def chat_body(content: str, **values: Any) -> dict[str, Any]:
    return {"model": "math", "messages": [{"role": "user", "content": content}], **values}


def capture_request(deployment: Deployment, content: str, **values: Any) -> bool:
    return request_capture(deployment_id=deployment.pk, endpoint=CHAT, body=chat_body(content, **values))


def rows_of(file_id: str) -> list[dict[str, Any]]:
    with get_storage().open(File.objects.get(pk=file_id).storage_key) as source:
        return [json.loads(line) for line in source]


def test_without_an_opt_in_no_request_is_captured(client: Client, deployment: Deployment) -> None:
    assert not capture_request(deployment, "secret")

    assert not CapturedRequest.objects.exists()
    assert client.get(f"/v1/deployments/{deployment.pk}/capture").json()["error"]["code"] == "capture_not_found"


def test_captured_requests_are_counted_and_an_opt_out_deletes_them(client: Client, deployment: Deployment) -> None:
    path = f"/v1/deployments/{deployment.pk}/capture"
    assert client.post(path, {"hours": 24}, content_type="application/json").json()["num_requests"] == 0
    assert capture_request(deployment, "one")

    body = client.get(path).json()
    assert (body["hours"], body["num_requests"]) == (24, 1)
    assert client.delete(path).json()["deleted"]
    assert not CapturedRequest.objects.exists()
    assert client.get(path).status_code == 404


@pytest.mark.parametrize("hours", [0, 721, "many"])
def test_hours_outside_of_one_hour_to_30_days_are_refused(
    client: Client, deployment: Deployment, hours: object
) -> None:
    response = client.post(
        f"/v1/deployments/{deployment.pk}/capture", {"hours": hours}, content_type="application/json"
    )

    assert (response.status_code, response.json()["error"]["param"]) == (400, "hours")


def test_distinct_captured_requests_become_batch_rows_for_the_base_model(
    client: Client, deployment: Deployment
) -> None:
    capture_set(deployment=deployment, hours=24)
    capture_request(deployment, "one", temperature=0.5, stream=True, user="u-1", n=3)
    capture_request(deployment, "two")
    capture_request(deployment, "one", temperature=0.5)

    file = client.post(f"/v1/deployments/{deployment.pk}/capture/file").json()

    rows = rows_of(file["id"])
    assert [row["body"] for row in rows] == [
        {"messages": [{"role": "user", "content": "one"}], "temperature": 0.5, "model": "tiny"},
        {"messages": [{"role": "user", "content": "two"}], "model": "tiny"},
    ]
    assert {row["url"] for row in rows} == {CHAT}
    assert len({row["custom_id"] for row in rows}) == 2
    assert file["purpose"] == "batch"


def test_a_file_of_captured_requests_is_written_without_loading_them_all(
    client: Client, deployment: Deployment
) -> None:
    capture_set(deployment=deployment, hours=24)
    for number in range(200):
        assert capture_request(deployment, f"{number} " + "x" * 200_000)

    tracemalloc.start()
    try:
        file = client.post(f"/v1/deployments/{deployment.pk}/capture/file").json()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert file["bytes"] > 200 * 200_000
    assert peak_bytes < 20 << 20, "of 200 requests of 0.2 MB, two copies of 16 requests may be in memory at a time"


def test_a_file_has_the_newest_captured_requests_that_fit_into_its_size_limit(
    client: Client, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.serving.captures.services.MAX_FILE_BYTES", 1_000)
    capture_set(deployment=deployment, hours=24)
    for content in ("oldest", "older", "newest"):
        capture_request(deployment, content, metadata=None, user="u", stop="x" * 300)

    file = client.post(f"/v1/deployments/{deployment.pk}/capture/file").json()

    assert [row["body"]["messages"][0]["content"] for row in rows_of(file["id"])] == ["newest", "older"]


def test_without_captured_requests_no_file_is_created(client: Client, deployment: Deployment) -> None:
    capture_set(deployment=deployment, hours=1)

    response = client.post(f"/v1/deployments/{deployment.pk}/capture/file")

    assert (response.status_code, response.json()["error"]["code"]) == (409, "nothing_captured")


def test_an_expired_request_is_left_out_of_files_at_once_and_deleted_by_the_pruning(
    client: Client, deployment: Deployment
) -> None:
    capture_set(deployment=deployment, hours=2)
    for content, minutes in (("old", 121), ("new", 119)):
        capture_request(deployment, content)
        made = CapturedRequest.objects.order_by("-id").first()
        assert made is not None
        CapturedRequest.objects.filter(pk=made.pk).update(created_at=timezone.now() - dt.timedelta(minutes=minutes))

    file = client.post(f"/v1/deployments/{deployment.pk}/capture/file").json()
    assert [row["body"]["messages"][0]["content"] for row in rows_of(file["id"])] == ["new"]
    captures_prune()
    assert CapturedRequest.objects.count() == 1


def test_pruning_keeps_only_the_newest_requests_and_none_of_a_deleted_deployment(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("control.serving.captures.services.MAX_REQUESTS", 2)
    capture_set(deployment=deployment, hours=2)
    for content in ("one", "two", "three"):
        capture_request(deployment, content)
    captures_prune()
    kept = CapturedRequest.objects.order_by("id")
    sealer = Sealer.of(deployment.organization_id)
    bodies = [sealer.open(bytes(request.sealed), deployment_id=deployment.pk) for request in kept]
    assert [body["messages"][0]["content"] for body in bodies] == ["two", "three"]

    Deployment.objects.filter(pk=deployment.pk).update(deleted_at=timezone.now())
    captures_prune()
    assert not Capture.objects.exists()
    assert not CapturedRequest.objects.exists()


def test_a_request_that_arrives_during_the_opt_out_is_deleted_too(deployment: Deployment) -> None:
    capture_end(capture=capture_set(deployment=deployment, hours=2))
    CapturedRequest.objects.create(
        deployment=deployment, organization=deployment.organization, endpoint=CHAT, sealed=b"late"
    )

    captures_prune()

    assert not CapturedRequest.objects.exists()


def test_very_long_requests_are_not_captured(deployment: Deployment) -> None:
    capture_set(deployment=deployment, hours=2)

    assert not capture_request(deployment, "x" * MAX_BODY_BYTES)


def test_a_pipeline_continues_training_a_speculator_with_captured_requests(
    client: Client, organization: Organization, deployment: Deployment
) -> None:
    capture_set(deployment=deployment, hours=24)
    for number in range(20):
        capture_request(deployment, f"question {number}")
    earlier = Speculator.objects.create(
        organization=organization, base_model=deployment.base_model, name="math", kind="medusa", status="ready",
        target_revision=deployment.base_model.revision, storage_prefix="s",
    )  # fmt: skip
    file = client.post(f"/v1/deployments/{deployment.pk}/capture/file").json()

    made = client.post(
        "/v1/pipelines",
        {
            "name": "math-2",
            "model": "tiny",
            "prompts_file": file["id"],
            "training": {"kind": "medusa", "initial_speculator": earlier.pk},
        },
        content_type="application/json",
    )

    assert made.status_code == 201, made.content
    pipeline = end_batch(Pipeline.objects.get(pk=made.json()["id"]))
    assert pipeline.training_job is not None
    assert pipeline.training_job.params["initial_speculator_id"] == earlier.pk
