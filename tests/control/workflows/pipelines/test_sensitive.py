"""Pipelines whose files are scanned for secrets and personal data."""

import json
from typing import Any

import pytest
from django.test import Client

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.workflows.distillations.services import distillation_create
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import chat_row, make_base_model, make_file

ANN = "ann@example.com"


def content_of(file_id: str) -> bytes:
    with get_storage().open(File.objects.get(pk=file_id).storage_key) as source:
        return source.read()


def create(client: Client, status: int = 201, **body: Any) -> Any:
    response = client.post("/v1/pipelines", {"name": "p", **body}, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json() if status == 201 else response.json()["error"]


@pytest.fixture
def files(organization: Organization) -> dict[str, Any]:
    prompts = [chat_row(f"row-{number}", content=f"{number}: write to {ANN}") for number in range(12)]
    held_out = [chat_row(f"held-{number}", content=f"call +1 650-253-000{number}") for number in range(4)]
    values = {
        "prompts_file": make_file(organization, prompts).pk,
        "held_out_file": make_file(organization, held_out).pk,
    }
    return {**values, "model": make_base_model(organization=organization).name}


def test_both_files_are_redacted_before_anything_is_stored_for_workers(client: Client, files: dict[str, Any]) -> None:
    made = create(client, **files, on_sensitive="redact")

    report = made["sensitive"]
    assert report["prompts_file"]["original_file_id"] == files["prompts_file"]
    assert [kind["kind"] for kind in report["held_out_file"]["kinds"]] == ["phone_number"]
    assert made["prompts_file"] != files["prompts_file"]
    first = json.loads(content_of(made["prompts_file"]).splitlines()[0])
    assert first["body"]["messages"][0]["content"] == "0: write to <EMAIL_1>"
    row = Pipeline.objects.get(pk=made["id"])
    assert row.batch is not None
    assert row.batch.input_file_id == made["prompts_file"]
    with get_storage().open(f"{row.organization_id}/pipelines/{row.pk}/held_out.jsonl") as source:
        assert b"650-253" not in source.read()


def test_held_out_rows_are_split_off_the_redacted_file(client: Client, files: dict[str, Any]) -> None:
    del files["held_out_file"]
    made = create(client, **files, on_sensitive="redact", held_out=3)
    assert made["sensitive"]["held_out_file"] is None
    for name in ("prompts_file", "held_out_file"):
        assert ANN.encode() not in content_of(made[name])


def test_a_refused_pipeline_leaves_nothing_and_a_warning_changes_no_file(client: Client, files: dict[str, Any]) -> None:
    num_files = File.objects.count()
    error = create(client, 400, **files, on_sensitive="refuse")
    assert (error["code"], error["param"]) == ("sensitive_data", "prompts_file")
    assert (Pipeline.objects.count(), File.objects.count()) == (0, num_files)
    made = create(client, **files, on_sensitive="warn")
    assert made["prompts_file"] == files["prompts_file"]
    assert made["sensitive"]["prompts_file"]["num_found"] == 12


def test_the_prompts_of_a_distillation_are_not_redacted(
    client: Client, organization: Organization, files: dict[str, Any]
) -> None:
    base_model = make_base_model(organization=organization)
    prompts = File.objects.get(pk=files["prompts_file"])
    distillation = distillation_create(organization=organization, base_model=base_model, prompts_file=prompts)
    body = {"model": base_model.name, "held_out_file": files["held_out_file"], "distillation_id": distillation.pk}
    error = create(client, 400, **body, on_sensitive="redact")
    assert (error["code"], error["param"]) == ("invalid_value", "on_sensitive")
