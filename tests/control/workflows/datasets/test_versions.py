"""Datasets with one name are numbered as versions, and a name with a version can replace an id."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from control.billing.usage.services import price_set
from control.core.api.errors import ApiError
from control.data.files.models import File
from control.tenants.accounts.models import Organization
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.selectors import dataset_get, datasets_list
from control.workflows.datasets.services import dataset_create, dataset_delete
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization


def create(client: Client, file: File, **values: Any) -> Any:
    response = client.post("/v1/datasets", {"file_id": file.pk, **values}, content_type="application/json")
    assert response.status_code == 201, response.content
    return response.json()


@pytest.fixture
def file(organization: Organization) -> File:
    return make_file(organization, [chat_row()])


def test_a_dataset_with_the_name_of_another_is_its_next_version(client: Client, file: File) -> None:
    made = [create(client, file, name=name) for name in ("prompts", "other", "prompts")]
    nameless = create(client, file)

    assert [(one["name"], one["version"]) for one in made] == [("prompts", 1), ("other", 1), ("prompts", 2)]
    assert (nameless["name"], nameless["version"]) == (None, None)
    versions = client.get("/v1/datasets", {"name": "prompts"}).json()["data"]
    assert [one["id"] for one in versions] == [made[2]["id"], made[0]["id"]]
    assert client.get("/v1/datasets", {"name": ""}).json()["data"][0]["id"] == nameless["id"]


def test_names_are_accepted_wherever_ids_are(client: Client, file: File) -> None:
    price_set(base_model_id="", input_nanousd=1000, output_nanousd=4000, batch_percent=50)
    make_base_model("m")
    first, second = (create(client, file, name="prompts", model="m") for _ in range(2))
    Dataset.objects.update(num_tokens=100)
    for reference, expected in (("prompts@1", first), ("prompts@2", second), ("prompts@latest", second)):
        for path in ("", "/errors"):
            assert client.get(f"/v1/datasets/{reference}{path}").status_code == 200
        assert client.get(f"/v1/datasets/{reference}").json()["id"] == expected["id"]
        quote = client.post("/v1/quotes", {"dataset_id": reference}, content_type="application/json")
        assert (quote.status_code, quote.json()["dataset_id"]) == (201, expected["id"])
    previews = [client.get(f"/v1/datasets/{one}/preview") for one in ("prompts@1", first["id"])]
    assert previews[0].json() == previews[1].json()
    third = create(client, file, name="prompts")
    assert client.delete("/v1/datasets/prompts@latest").json()["id"] == third["id"]


@pytest.mark.parametrize(
    "reference", ["prompts", "prompts@3", "prompts@0", "prompts@01", "prompts@+1", "prompts@", "@1", "@latest"]
)
def test_a_reference_that_names_no_version_is_not_found(client: Client, file: File, reference: str) -> None:
    create(client, file, name="prompts")
    create(client, file)
    response = client.get(f"/v1/datasets/{reference}")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "dataset_not_found")


def test_names_do_not_reach_datasets_of_other_organizations(client: Client, file: File) -> None:
    create(client, file, name="prompts")
    other = make_organization("other")
    assert client_of(other).get("/v1/datasets/prompts@latest").status_code == 404
    assert client_of(other).get("/v1/datasets", {"name": "prompts"}).json()["data"] == []
    theirs = create(client_of(other), make_file(other, [chat_row()]), name="prompts")
    assert theirs["version"] == 1
    assert client.get("/v1/datasets/prompts@latest").json()["id"] != theirs["id"]


@pytest.mark.parametrize("name", ["a@1", "", " ", "-a", "a/b", "a" * 65])
def test_names_that_could_not_be_told_from_references_are_refused(client: Client, file: File, name: str) -> None:
    body = {"file_id": file.pk, "name": name}
    response = client.post("/v1/datasets", body, content_type="application/json")
    assert (response.status_code, response.json()["error"]["param"]) == (400, "name")


@pytest.mark.django_db(transaction=True)
def test_datasets_that_are_created_at_once_get_different_versions() -> None:
    organization = make_organization()
    file = make_file(organization, [chat_row()])

    def one(number: int) -> int | None:
        try:
            return dataset_create(organization=organization, file=file, name="prompts").version
        finally:
            connection.close()

    with ThreadPoolExecutor(2) as pool:
        versions = list(pool.map(one, range(6)))

    assert sorted(version or 0 for version in versions) == [1, 2, 3, 4, 5, 6]


@pytest.mark.django_db
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.sampled_from(["create a", "create b", "delete a@latest", "delete a@1"]), max_size=8))
def test_latest_is_the_newest_dataset_that_exists(organization: Organization, file: File, steps: list[str]) -> None:
    Dataset.objects.all().delete()
    for step in steps:
        verb, name = step.split()
        if verb == "create":
            dataset_create(organization=organization, file=file, name=name)
        elif (found := _found(organization, name)) is not None:
            dataset_delete(dataset=found)
    for name in "ab":
        expected = max(datasets_list(organization, name=name), key=lambda one: one.pk, default=None)
        assert _found(organization, f"{name}@latest") == expected


def _found(organization: Organization, reference: str) -> Dataset | None:
    try:
        return dataset_get(organization, reference)
    except ApiError:
        return None
