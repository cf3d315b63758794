"""A mix has rows of several datasets in the proportion of their weights. The same recipe makes the same bytes."""

import json
from contextlib import suppress
from typing import Any

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from control.core.api.errors import ApiError
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.workflows.datasets.deriving import mix_counts
from control.workflows.datasets.models import Dataset
from control.workflows.prompt_files.file_pass import SMALL_BYTES
from control.workflows.prompt_files.validation import MAX_ROWS
from tests.control.factories import chat_row, client_of, make_organization
from tests.control.workflows.datasets.test_filters import lines_of
from tests.control.workflows.datasets.test_splits import content_of, make


def mixed(client: Client, status: int = 201, **body: Any) -> Any:
    response = client.post("/v1/datasets/mix", body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json() if status == 201 else response.json()["error"]


def source_of(dataset: Any, weight: float = 1.0) -> dict[str, Any]:
    return {"dataset_id": dataset if isinstance(dataset, str) else dataset["id"], "weight": weight}


def kinds_in(lines: list[bytes]) -> str:
    """Returns the first letter of each prompt."""
    return "".join(json.loads(line)["prompt"][0] for line in lines)


@pytest.fixture
def chats(client: Client, organization: Organization) -> Any:
    return make(client, organization, content_of([f"chat {n}" for n in range(300)]), name="chats")


@pytest.fixture
def code(client: Client, organization: Organization) -> Any:
    return make(client, organization, content_of([f"task {n}" for n in range(40)]), name="code")


def test_a_mix_has_its_proportion_in_every_stretch_and_its_recipe_makes_the_same_bytes_again(
    client: Client, chats: Any, code: Any
) -> None:
    assert Dataset.objects.get(pk=chats["id"]).file.size_bytes > SMALL_BYTES  # so a child process reads it
    body: dict[str, Any] = {"sources": [source_of("chats@latest", 3), source_of(code)], "rows": 80, "seed": 7}

    made = mixed(client, **body, name="mix")
    again = mixed(client, **made["origin"]["mix"])
    other = mixed(client, **{**body, "seed": 8})

    lines = lines_of(client, made)
    assert (made["name"], made["version"], made["num_rows"]) == ("mix", 1, 80)
    assert made["origin"] == {"mix": {**body, "sources": [source_of(chats, 3), source_of(code)]}}
    assert all(kinds_in(lines[start : start + 8]).count("c") == 6 for start in range(0, 80, 8))
    assert lines_of(client, again) == lines
    assert File.objects.get(pk=again["file_id"]).sha256 == File.objects.get(pk=made["file_id"]).sha256
    assert set(lines_of(client, other)) != set(lines)
    originals = {*lines_of(client, chats), *lines_of(client, code)}
    assert len(set(lines)) == 80
    assert set(lines) <= originals  # unchanged, and without repetition


def test_without_a_number_of_rows_a_mix_is_as_large_as_the_sources_allow(client: Client, chats: Any, code: Any) -> None:
    made = mixed(client, sources=[source_of(chats, 3), source_of(code, 1)])
    assert made["num_rows"] == 160  # all 40 tasks, and three times as many chats
    assert made["origin"]["mix"]["rows"] == 160
    assert mixed(client, sources=[source_of(chats)])["num_rows"] == 300


@given(
    sources=st.lists(st.tuples(st.integers(1, 60_000), st.floats(0.01, 100)), min_size=1, max_size=5),
    rows=st.none() | st.integers(1, MAX_ROWS),
)
def test_counts_follow_the_weights_to_within_a_row_and_no_source_gives_more_than_it_has(
    sources: list[tuple[int, float]], rows: int | None
) -> None:
    available, weights = [num for num, _ in sources], [weight for _, weight in sources]
    counts: list[int] | None = None
    with suppress(ApiError):  # a source has too few rows, or its weight is too low for a row
        counts = mix_counts(available, weights, rows)
    if counts is None:
        return
    total = sum(counts)
    assert total == rows or (rows is None and 1 <= total <= MAX_ROWS)
    for count, num, weight in zip(counts, available, weights, strict=True):
        assert 1 <= count <= num
        assert abs(count - total * weight / sum(weights)) < 1 + 1e-6


def test_the_largest_mix_is_never_refused_for_a_source_that_has_too_few_rows() -> None:
    assert mix_counts([10, 10], [1.0, 1.0], None) == [10, 10]
    assert mix_counts([7, 100], [2.0, 3.0], None) == [7, 10]
    assert mix_counts([MAX_ROWS, MAX_ROWS], [1.0, 1.0], None) == [MAX_ROWS // 2] * 2


def test_a_refused_mix_creates_nothing(client: Client, organization: Organization, chats: Any, code: Any) -> None:
    batch = make(client, organization, json.dumps(chat_row("row-1")).encode(), name="rows")
    same_id = make(client, organization, json.dumps(chat_row("row-1", content="else")).encode())
    bad = make(client, organization, b"not json")
    before = (Dataset.objects.count(), File.objects.count())
    for sources, rows, status, error_code in (
        ([source_of(chats), source_of(code)], 90, 400, "too_few_rows"),
        ([source_of(chats), source_of(code)], 1, 400, "too_few_rows"),
        ([source_of(chats), source_of("chats@latest")], None, 400, "invalid_value"),
        ([source_of(chats), source_of(batch)], None, 400, "mixed_formats"),
        ([source_of(batch), source_of(same_id)], None, 400, "duplicate_custom_id"),
        ([source_of(chats), source_of(bad)], None, 409, "dataset_not_valid"),
        ([source_of("nothing@1")], None, 404, "dataset_not_found"),
    ):
        error = mixed(client, status, sources=sources, rows=rows)
        assert (error["code"], error["param"]) == (error_code, "sources"), error
    assert (Dataset.objects.count(), File.objects.count()) == before


def test_another_organization_cannot_mix_the_dataset(chats: Any) -> None:
    stranger = client_of(make_organization("other"))
    assert mixed(stranger, 404, sources=[source_of(chats)])["code"] == "dataset_not_found"
