"""Each row of a dataset is in at most one split, and a prompt is in the same split in each version of the dataset."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from control.data.files.models import File
from control.data.files.services import file_delete
from control.tenants.accounts.models import Organization, Project
from control.tenants.quotas.file_work import file_work
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.passes import split_rows
from control.workflows.prompt_files.file_pass import SMALL_BYTES
from tests.control.factories import chat_row, client_of, make_file, make_organization

SHARES = {"train": 0.5, "held_out": 0.3, "test": 0.2}
PROMPTS = st.lists(st.integers(0, 40).map(lambda number: f"question {number}"), max_size=12)


def content_of(prompts: Sequence[str], **members: Any) -> bytes:
    return b"".join(
        json.dumps({"prompt": prompt, "completion": str(number), **members}).encode() + b"\n"
        for number, prompt in enumerate(prompts)
    )


def rows_of(prompts: Sequence[str], *, seed: int = 0, shares: dict[str, float]) -> dict[str, list[bytes]]:
    """Returns the lines of each split."""
    with TemporaryDirectory() as folder:
        found = split_rows(BytesIO(content_of(prompts)), folder=folder, seed=seed, shares=shares, label=None)
        return {name: (Path(folder) / str(n)).read_bytes().splitlines() for n, name in enumerate(found["splits"])}


def prompts_in(lines: Sequence[bytes]) -> set[str]:
    return {json.loads(line)["prompt"] for line in lines}


@settings(max_examples=80, deadline=None)
@given(first=PROMPTS, second=PROMPTS, seed=st.integers(0, 3))
def test_each_row_is_in_one_split_and_a_prompt_stays_in_its_split_in_each_version(
    first: list[str], second: list[str], seed: int
) -> None:
    one, reordered = rows_of(first, seed=seed, shares=SHARES), dict(reversed(SHARES.items()))
    other = rows_of([*second, *first], seed=seed, shares=reordered)

    assert sorted(line for lines in one.values() for line in lines) == sorted(content_of(first).splitlines())
    for name, lines in one.items():
        assert prompts_in(lines) <= prompts_in(other[name])
        for another in SHARES.keys() - {name}:
            assert not prompts_in(lines) & prompts_in(other[another])


def test_splits_have_their_shares_of_many_prompts_and_another_seed_gives_other_splits() -> None:
    prompts = [f"question {number}" for number in range(2000)]
    splits = rows_of(prompts, shares={"a": 0.6, "b": 0.3})
    assert abs(len(splits["a"]) - 1200) < 120
    assert abs(len(splits["b"]) - 600) < 100  # the rest is in no split
    assert splits["a"] != rows_of(prompts, seed=1, shares={"a": 0.6, "b": 0.3})["a"]
    assert len(rows_of(prompts, shares=dict.fromkeys("abcdefghij", 0.1))["j"]) > 100


def split(client: Client, dataset: str, status: int = 201, **body: Any) -> Any:
    response = client.post(f"/v1/datasets/{dataset}/splits", body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()["data"] if status == 201 else response.json()["error"]


def make(client: Client, organization: Organization, content: bytes, **values: Any) -> Any:
    body = {"file_id": make_file(organization, content, purpose="fine-tune").pk, **values}
    return client.post("/v1/datasets", body, content_type="application/json").json()


def test_a_split_of_a_named_dataset_is_the_next_version_of_its_own_name(
    client: Client, organization: Organization
) -> None:
    content = content_of([f"question {number}" for number in range(60)])
    source = make(client, organization, content, name="prompts")
    shares = {"train": 0.8, "held_out": 0.2}

    made = split(client, "prompts@latest", shares=shares)
    again = split(client, source["id"], shares=shares)

    assert [(one["name"], one["version"]) for one in made] == [("prompts.held_out", 1), ("prompts.train", 1)]
    assert [one["version"] for one in again] == [2, 2]
    assert sum(one["num_rows"] for one in made) == sum(one["num_answers"] for one in made) == 60
    origin = {"dataset_id": source["id"], "split": "held_out", "shares": shares, "seed": 0, "label": None}
    assert made[0]["origin"] == origin
    files = [client.get(f"/v1/files/{one['file_id']}/content").getvalue() for one in made]
    assert sorted(b"".join(files).splitlines()) == sorted(content.splitlines())
    assert {client.get(f"/v1/files/{one['file_id']}").json()["purpose"] for one in made} == {"fine-tune"}
    assert client.get("/v1/datasets/prompts.train@1").json() == made[1]


def test_a_label_splits_by_its_value(client: Client, organization: Organization) -> None:
    content = content_of(["a", "b"], topic="law") + content_of(["c"], topic="art")
    made = split(client, make(client, organization, content)["id"], label="topic")
    assert {one["origin"]["split"]: one["num_rows"] for one in made} == {"law": 2, "art": 1}
    assert {one["name"] for one in made} == {None}


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({}, 400, "missing_required_parameter", "shares"),
        ({"shares": {"a": 0.5}, "label": "topic"}, 400, "invalid_value", "shares"),
        ({"shares": {"a": 0.6, "b": 0.5}}, 400, "invalid_value", "shares"),
        ({"shares": {"a": 1e-12}}, 400, "empty_split", "shares"),
        ({"label": "topic"}, 400, "invalid_label", "label"),
        ({"label": "id"}, 400, "too_many_labels", "label"),
    ],
)
def test_a_refused_split_creates_nothing(
    client: Client, organization: Organization, body: dict[str, Any], status: int, code: str, param: str
) -> None:
    content = b"".join(content_of([str(number)], id=f"id{number}") for number in range(20))
    source = make(client, organization, content)
    num_files = File.objects.count()

    error = split(client, source["id"], status, **body)

    assert (error["code"], error["param"]) == (code, param)
    assert (Dataset.objects.count(), File.objects.count()) == (1, num_files)


def test_datasets_with_bad_lines_deleted_files_or_another_owner_are_not_split(
    client: Client, organization: Organization, django_capture_on_commit_callbacks: Any
) -> None:
    bad = make(client, organization, b"not json")
    assert split(client, bad["id"], 409, shares={"a": 1.0})["code"] == "dataset_not_valid"
    good = make(client, organization, content_of(["a"]))
    stranger = client_of(make_organization("other"))
    assert split(stranger, good["id"], 404, shares={"a": 1.0})["code"] == "dataset_not_found"
    with django_capture_on_commit_callbacks(execute=True):
        file_delete(file=File.objects.get(pk=good["file_id"]))
    assert split(client, good["id"], 404, shares={"a": 1.0})["code"] == "file_not_found"


def test_a_file_that_a_child_process_reads_is_split_by_labels_in_the_order_of_their_names(
    client: Client, organization: Organization
) -> None:
    content = b"".join(content_of([f"{topic} {n}" for n in range(90)], topic=topic) for topic in ("law", "art", "sea"))
    assert len(content) > SMALL_BYTES
    made = split(client, make(client, organization, content)["id"], label="topic")
    assert [(one["origin"]["split"], one["num_rows"]) for one in made] == [("art", 90), ("law", 90), ("sea", 90)]


def test_a_split_has_one_slot_for_all_its_passes(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make(client, organization, content_of([f"question {number}" for number in range(60)]))
    counted: list[str] = []
    take = file_work._counted

    def recorded(organization_id: str) -> Any:
        counted.append(organization_id)
        return take(organization_id)

    monkeypatch.setattr(file_work, "_counted", recorded)
    assert len(split(client, source["id"], shares=SHARES)) == 3
    assert counted == [organization.pk]


def test_a_split_belongs_to_the_project_of_its_dataset(client: Client, organization: Organization) -> None:
    source = make(client, organization, content_of([f"question {number}" for number in range(60)]))
    project = Project.objects.create(organization=organization, name="p")
    Dataset.objects.filter(pk=source["id"]).update(project=project)
    for one in split(client, source["id"], shares=SHARES):
        row = Dataset.objects.get(pk=one["id"])
        assert (row.project, row.file.project) == (project, project)


def test_batch_rows_keep_their_ids(client: Client, organization: Organization) -> None:
    rows = [chat_row(f"row-{number}", content=f"question {number}") for number in range(40)]
    source = make(client, organization, b"\n".join(json.dumps(row).encode() for row in rows))
    made = split(client, source["id"], shares={"train": 0.5, "held_out": 0.5})
    files = [client.get(f"/v1/files/{one['file_id']}/content").getvalue() for one in made]
    assert sorted(json.loads(line)["custom_id"] for line in b"".join(files).splitlines()) == sorted(
        str(row["custom_id"]) for row in rows
    )
