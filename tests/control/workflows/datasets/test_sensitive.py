"""Datasets whose files are scanned for secrets and personal data."""

import json
from typing import Any

import pytest
from django.test import Client

from control.data.files.models import File
from control.tenants.accounts.models import Organization, Project
from control.workflows.datasets.models import Dataset
from tests.control.factories import make_file

CONTENT = b'{"prompt": "write to ann@example.com", "completion": "done"}\n{"prompt": "hello"}\n'


def make(client: Client, file: File, status: int = 201, **values: Any) -> Any:
    response = client.post("/v1/datasets", {"file_id": file.pk, **values}, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json() if status == 201 else response.json()["error"]


@pytest.fixture
def file(organization: Organization) -> File:
    return make_file(organization, CONTENT, purpose="fine-tune")


def test_a_warning_is_in_the_dataset_and_without_a_policy_nothing_is_scanned(client: Client, file: File) -> None:
    assert make(client, file)["sensitive"] is None
    warned = make(client, file, on_sensitive="warn")
    kinds = [{"kind": "email", "num_found": 1, "num_rows": 1, "lines": [1]}]
    counts = {"num_rows": 1, "num_found": 1, "num_unread_lines": 0, "kinds": kinds}
    assert warned["sensitive"] == {"policy": "warn", "original_file_id": None, **counts}
    assert (warned["file_id"], warned["origin"]) == (file.pk, None)
    assert client.get(f"/v1/datasets/{warned['id']}").json() == warned


def test_redacting_makes_the_next_version_with_placeholders_and_names_the_original(client: Client, file: File) -> None:
    make(client, file, name="mail")
    made = make(client, file, name="mail", on_sensitive="redact")
    assert (made["version"], made["num_rows"], made["num_answers"]) == (2, 2, 1)
    assert made["origin"] == {"file_id": file.pk, "on_sensitive": "redact"}
    assert made["sensitive"]["original_file_id"] == file.pk
    assert File.objects.get(pk=made["file_id"]).made_from == file.pk
    lines = client.get(f"/v1/files/{made['file_id']}/content").getvalue().splitlines()
    assert json.loads(lines[0]) == {"prompt": "write to <EMAIL_1>", "completion": "done"}
    assert lines[1] == CONTENT.splitlines()[1]
    assert client.get(f"/v1/files/{file.pk}/content").getvalue() == CONTENT


def test_a_refused_file_leaves_no_dataset_and_no_file(client: Client, file: File) -> None:
    error = make(client, file, 400, on_sensitive="refuse")
    assert (error["code"], error["param"]) == ("sensitive_data", "file_id")
    assert "ann@" not in error["message"]
    assert (Dataset.objects.count(), File.objects.count()) == (0, 1)
    assert make(client, file, 400, on_sensitive="hide")["param"] == "on_sensitive"


def test_a_redacted_copy_belongs_to_the_project_of_its_original(
    client: Client, organization: Organization, file: File
) -> None:
    project = Project.objects.create(organization=organization, name="p")
    File.objects.filter(pk=file.pk).update(project=project)
    made = make(client, file, on_sensitive="redact")
    row = Dataset.objects.get(pk=made["id"])
    assert (row.project, row.file.project) == (project, project)
