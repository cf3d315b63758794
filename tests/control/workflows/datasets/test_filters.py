"""A filter makes a new version of a dataset with the rows that pass, unchanged and in their order."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.data.files.models import File
from control.tenants.accounts.models import Organization, Project
from control.workflows.datasets.filter_passes import filter_rows
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.splits import Shares
from control.workflows.prompt_files.file_pass import SMALL_BYTES
from control.workflows.prompt_files.sketches import prompt_key
from tests.control.factories import client_of, make_base_model, make_file, make_organization
from tests.control.workflows.datasets.test_splits import content_of, make, split
from tests.control.workflows.datasets.tokenizer import write_tokenizer


def filtered(client: Client, dataset: str, status: int = 201, **body: Any) -> Any:
    response = client.post(f"/v1/datasets/{dataset}/filter", body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json() if status == 201 else response.json()["error"]


def lines_of(client: Client, dataset: Any) -> list[bytes]:
    content: bytes = client.get(f"/v1/files/{dataset['file_id']}/content").getvalue()
    return content.splitlines()


ROWS = [
    {"prompt": "What is law?", "completion": "Rules.", "topic": "law", "lang": "en"},
    {"prompt": "What is art?", "completion": "Beauty, in the eye of whoever looks.", "topic": "art", "lang": "en"},
    {"prompt": "Qu'est-ce que l'art ?", "topic": "art", "lang": "fr"},
    {"prompt": "What is a sea? Call +1 650", "completion": "Water.", "topic": "sea"},
]


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ({"labels": {"topic": ["law", "art"]}}, [0, 1, 2]),
        ({"labels": {"topic": ["art"], "lang": ["fr", "de"]}}, [2]),
        ({"has_answer": True}, [0, 1, 3]),
        ({"has_answer": False}, [2]),
        ({"contains": "What is"}, [0, 1, 3]),
        ({"contains": "eye of"}, [1]),
        ({"matches": r"(?i)what is an? \w"}, [3]),
        ({"matches": r"^Rules\.$|Water"}, [3]),
        ({"excludes": r"\+\d"}, [0, 1, 2]),
        ({"min_characters": 30}, [1, 3]),
        ({"min_characters": 19, "max_characters": 21}, [0, 2]),
        ({"contains": "What is", "excludes": "sea", "has_answer": True}, [0, 1]),
        ({"rows": 4}, [0, 1, 2, 3]),
    ],
)
def test_rows_pass_if_all_conditions_hold(
    client: Client, organization: Organization, conditions: dict[str, Any], kept: list[int]
) -> None:
    lines = [json.dumps(row).encode() for row in ROWS]
    source = make(client, organization, b"\n".join(lines))
    made = filtered(client, source["id"], **conditions)
    assert lines_of(client, made) == [lines[number] for number in kept]
    assert made["num_rows"] == len(kept)
    assert made["origin"]["dataset_id"] == source["id"]
    assert conditions.items() <= made["origin"]["filter"].items()


def test_a_filter_makes_the_next_version_and_its_recipe_makes_the_same_bytes_again(
    client: Client, organization: Organization
) -> None:
    content = content_of([f"question {number}" for number in range(300)])
    assert len(content) > SMALL_BYTES  # so a child process filters
    make(client, organization, content, name="prompts")

    made = filtered(client, "prompts@latest", matches=r"[02468]\b", share=0.5, rows=40, seed=3)
    again = filtered(client, made["origin"]["dataset_id"], name="other", **made["origin"]["filter"])

    assert (made["name"], made["version"]) == ("prompts", 2)
    assert (again["name"], again["version"]) == ("other", 1)
    assert made["num_rows"] == 40
    assert File.objects.get(pk=made["file_id"]).made_from == made["origin"]["dataset_id"]
    assert lines_of(client, again) == lines_of(client, made)
    hashes = File.objects.filter(pk__in=(made["file_id"], again["file_id"])).values_list("sha256", flat=True)
    assert len(set(hashes)) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(numbers=st.lists(st.integers(0, 60), max_size=60), more=st.lists(st.integers(0, 60), max_size=20))
def test_a_prompt_that_is_sampled_stays_sampled_in_each_version_and_equal_prompts_go_together(
    tmp_path: Path, numbers: list[int], more: list[int]
) -> None:
    def kept(numbers: list[int]) -> set[int]:
        path = tmp_path / "kept"
        source = BytesIO(content_of([str(number) for number in numbers]))
        filter_rows(source, path=str(path), conditions={"share": 0.5}, seed=1)
        left = [int(json.loads(line)["prompt"]) for line in path.read_bytes().splitlines()]
        assert left == [number for number in numbers if number in left]  # all of the equal prompts, in order
        return set(left)

    assert kept(numbers) == kept([*more, *numbers]) & set(numbers)


def test_the_share_of_a_split_is_sampled_independently_of_the_split(tmp_path: Path) -> None:
    """If both used the same hash, sampling half of the split `train` would keep all of its rows."""
    shares = Shares(0, {"train": 0.5})
    prompts = [text for n in range(2000) if shares.split_of(prompt_key({"prompt": (text := f"q {n}")})) == "train"]
    path = tmp_path / "kept"
    source = BytesIO(content_of(prompts))
    found = filter_rows(source, path=str(path), conditions={"share": 0.5}, seed=0)
    assert 0.4 < found["num_rows"] / len(prompts) < 0.6


LONG = "please summarise the following report about the water levels of the lake in the last ten years for the board "


@pytest.mark.parametrize(("kind", "kept"), [("exact", [0, 2, 3, 5]), ("near", [0, 2])])
def test_duplicates_are_dropped_until_none_is_counted(
    client: Client, organization: Organization, kind: str, kept: list[int]
) -> None:
    prompts = ["a question", "a  question", LONG + "now", LONG + "today", "a question", LONG + "then"]
    content = content_of(prompts)
    made = filtered(client, make(client, organization, content)["id"], drop_duplicates=kind)
    assert lines_of(client, made) == [content.splitlines()[number] for number in kept]
    assert made["duplicates"]["exact"]["num_rows"] == 0
    assert (made["duplicates"]["near"]["num_rows"] == 0) == (kind == "near")


def test_a_duplicate_of_a_row_that_does_not_pass_is_kept(client: Client, organization: Organization) -> None:
    source = make(client, organization, content_of(["same", "same"]))
    made = filtered(client, source["id"], drop_duplicates="exact", matches="1$")  # the answer of the second row
    assert [json.loads(line)["completion"] for line in lines_of(client, made)] == ["1"]


def test_prompts_stay_in_their_splits_after_a_filter(client: Client, organization: Organization) -> None:
    source = make(client, organization, content_of([f"question {number}" for number in range(120)]))
    shares = {"train": 0.7, "held_out": 0.3}
    before = {one["origin"]["split"]: set(lines_of(client, one)) for one in split(client, source["id"], shares=shares)}
    some = filtered(client, source["id"], matches="[135]$")["id"]
    after = {one["origin"]["split"]: set(lines_of(client, one)) for one in split(client, some, shares=shares)}
    assert all(after[name] <= before[name] for name in shares)
    assert sum(map(len, after.values())) == Dataset.objects.get(pk=some).num_rows


def test_rows_are_filtered_by_the_tokens_of_the_models_tokenizer(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    write_tokenizer(tmp_path)
    base_model = make_base_model(organization=organization)
    type(base_model).objects.filter(pk=base_model.pk).update(path=str(tmp_path))
    content = content_of(["one", "one two three four five six seven eight"])
    source = make(client, organization, content, model=base_model.name)
    short = filtered(client, source["id"], max_tokens=8)
    assert [json.loads(line)["prompt"] for line in lines_of(client, short)] == ["one"]
    assert short["model"] == base_model.name
    assert filtered(client, source["id"], min_tokens=9)["num_rows"] == 1
    without = make(client, organization, content)
    assert filtered(client, without["id"], 400, min_tokens=9)["code"] == "tokenizer_not_available"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "matches"),
        ({"seed": 3, "matches": None}, "missing_required_parameter", "matches"),
        ({"matches": "("}, "invalid_pattern", "matches"),
        ({"excludes": r"(a)\1"}, "invalid_pattern", "excludes"),
        ({"matches": "a*"}, "invalid_pattern", "matches"),
        ({"min_characters": 5, "max_characters": 4}, "invalid_value", "min_characters"),
        ({"contains": "nowhere"}, "no_rows_left", "dataset_id"),
        ({"rows": 0}, "invalid_value", "rows"),
        ({"share": 2}, "invalid_value", "share"),
    ],
)
def test_a_refused_filter_creates_nothing(
    client: Client, organization: Organization, body: dict[str, Any], code: str, param: str
) -> None:
    source = make(client, organization, content_of(["a", "b"]))
    error = filtered(client, source["id"], 400, **body)
    assert (error["code"], error["param"]) == (code, param)
    assert (Dataset.objects.count(), File.objects.count()) == (1, 1)


def test_a_pattern_on_which_a_backtracking_engine_would_hang_takes_no_time(
    client: Client, organization: Organization
) -> None:
    source = make(client, organization, content_of(["a" * 400_000 + "!", "b"]))
    made = filtered(client, source["id"], excludes=r"^(a+)+$|(a|aa)+c")
    assert made["num_rows"] == 2


def test_other_organizations_and_datasets_with_bad_lines_are_refused(
    client: Client, organization: Organization
) -> None:
    source = make(client, organization, content_of(["a"]))
    assert filtered(client_of(make_organization("other")), source["id"], 404, rows=1)["code"] == "dataset_not_found"
    bad = make(client, organization, b"not json")
    assert filtered(client, bad["id"], 409, rows=1)["code"] == "dataset_not_valid"


def test_a_filtered_dataset_belongs_to_the_project_of_its_source(client: Client, organization: Organization) -> None:
    source = make(client, organization, content_of(["a"]))
    project = Project.objects.create(organization=organization, name="p")
    Dataset.objects.filter(pk=source["id"]).update(project=project)
    row = Dataset.objects.get(pk=filtered(client, source["id"], rows=1)["id"])
    assert (row.project, row.file.project) == (project, project)
    assert make_file(organization).project is None
