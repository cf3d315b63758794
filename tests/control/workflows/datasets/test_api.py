"""The routes of /v1/datasets, with a tokenizer and a chat template in the model's folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from control.data.files.models import File
from control.data.files.services import file_delete
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.workflows.datasets import tokens
from control.workflows.datasets.models import Dataset
from tests.control.factories import client_of, make_base_model, make_file
from tests.control.workflows.datasets.hostile import GOOD, chat
from tests.control.workflows.datasets.tokenizer import write_tokenizer


@pytest.fixture
def model(organization: Organization, tmp_path: Path) -> BaseModel:
    """A model whose tokenizer makes one token of each word."""
    model = make_base_model("tiny", organization)
    write_tokenizer(tmp_path)
    BaseModel.objects.filter(pk=model.pk).update(path=str(tmp_path), revision=tmp_path.name)
    return model


def create(client: Client, file: File, **values: Any) -> Any:
    return client.post("/v1/datasets", {"file_id": file.pk, **values}, content_type="application/json")


def test_the_tokens_of_a_valid_file_are_counted_at_creation(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    file = make_file(organization, GOOD + b"\n" + chat() + b"\n", purpose="fine-tune")

    response = create(client, file, model="tiny")

    assert response.status_code == 201
    body = response.json()
    assert (body["object"], body["status"], body["format"], body["file_id"]) == ("dataset", "valid", "chat", file.pk)
    assert (body["num_rows"], body["num_answers"], body["bytes"]) == (2, 1, file.size_bytes)
    assert (body["num_tokens"], body["num_tokens_exact"]) == (5 + 3, True)  # words, after the template is applied
    assert body["errors"] == {"object": "list", "data": [], "total_count": 0, "by_code": {}}
    assert client.get(f"/v1/datasets/{body['id']}").json() == body
    assert client.get("/v1/datasets").json()["data"] == [body]
    assert client.delete(f"/v1/datasets/{body['id']}").json()["deleted"]
    assert client.get(f"/v1/datasets/{body['id']}").status_code == 404


def test_every_invalid_line_is_listed_with_its_line_number(client: Client, organization: Organization) -> None:
    content = b"\n".join([GOOD, b"not json", *[b'{"messages": []}'] * 30])
    body = create(client, make_file(organization, content)).json()

    assert (body["status"], body["num_rows"], body["num_tokens"]) == ("invalid", 32, None)
    assert body["errors"]["by_code"] == {"invalid_json_line": 1, "invalid_body": 30}
    assert len(body["errors"]["data"]) == 20  # the dataset contains the first errors, the route `/errors` all of them
    first = body["errors"]["data"][0]
    assert (first["line"], first["column"], first["code"]) == (2, 1, "invalid_json_line")
    all_errors = client.get(f"/v1/datasets/{body['id']}/errors").json()
    assert [error["line"] for error in all_errors["data"]] == list(range(2, 33))
    assert (all_errors["total_count"], all_errors["is_complete"]) == (31, True)


def test_equal_and_similar_prompts_are_counted_with_their_lines(client: Client, organization: Organization) -> None:
    long = "please summarise the following report about the water levels of the lake in the last ten years"
    prompts = ["one", f"{long} for us", "two", " one ", f"{long} for me", "one"]
    rows = b"\n".join(json.dumps({"prompt": prompt, "completion": str(n)}).encode() for n, prompt in enumerate(prompts))

    made = create(client, make_file(organization, b"bad\n" + rows)).json()

    assert made["duplicates"] == {
        "exact": {"num_rows": 2, "examples": [{"line": 5, "other_line": 2}, {"line": 7, "other_line": 2}]},
        "near": {"num_rows": 1, "examples": [{"line": 6, "other_line": 3}]},
    }


def test_stored_errors_of_an_unknown_shape_are_returned_unchanged(client: Client, organization: Organization) -> None:
    made = create(client, make_file(organization, b"not json")).json()
    Dataset.objects.update(errors=["line 1 is bad"], errors_by_code={"invalid_json_line": "1"})

    body = client.get(f"/v1/datasets/{made['id']}").json()["errors"]

    assert (body["data"], body["by_code"]) == (["line 1 is bad"], {"invalid_json_line": "1"})
    assert client.get(f"/v1/datasets/{made['id']}/errors").json()["data"] == ["line 1 is bad"]


def test_the_tokens_of_a_large_file_are_estimated_from_a_sample(
    client: Client, organization: Organization, model: BaseModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "SAMPLE_BYTES", 1000)
    file = make_file(organization, (chat() + b"\n") * 400)

    body = create(client, file, model="tiny").json()

    assert not body["num_tokens_exact"]
    assert body["num_tokens"] == 3 * 400  # "user", "2+2?" and "assistant" in each of the 400 rows


def test_the_preview_shows_the_tokens_that_the_loss_includes(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    file = make_file(organization, GOOD + b"\nnot json\n" + chat() + b"\n")
    dataset = create(client, file, model="tiny").json()

    rows = client.get(f"/v1/datasets/{dataset['id']}/preview", {"limit": 2}).json()["data"]

    assert [(token["text"], token["in_loss"]) for token in rows[0]["tokens"]] == [
        ("user", False),
        ("2+2?", False),
        ("assistant", False),
        ("4", True),
        ("end", True),
    ]
    assert rows[0]["num_loss_tokens"] == 2
    assert rows[1]["line"] == 3
    assert not any(token["in_loss"] for token in rows[1]["tokens"])


def test_a_file_without_a_valid_row_has_no_tokens_and_an_empty_preview(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    dataset = create(client, make_file(organization, b"not json\n"), model="tiny").json()

    assert (dataset["status"], dataset["num_tokens"]) == ("invalid", 0)
    assert client.get(f"/v1/datasets/{dataset['id']}/preview").json()["data"] == []


def test_the_preview_shows_the_error_of_a_row_that_the_template_refuses(
    client: Client, organization: Organization, model: BaseModel, tmp_path: Path
) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system please') }}")
    dataset = create(client, make_file(organization, GOOD), model="tiny").json()

    (row,) = client.get(f"/v1/datasets/{dataset['id']}/preview").json()["data"]

    assert row["tokens"] == []
    assert "no system please" in row["error"]["message"]


def test_a_template_cannot_leave_its_sandbox(
    client: Client, organization: Organization, model: BaseModel, tmp_path: Path
) -> None:
    escape = "{{ messages.__class__.__mro__[1].__subclasses__() }}"
    (tmp_path / "chat_template.jinja").write_text(escape)
    dataset = create(client, make_file(organization, GOOD), model="tiny").json()

    (row,) = client.get(f"/v1/datasets/{dataset['id']}/preview").json()["data"]

    assert row["error"]["code"] == "chat_template_error"


def test_without_a_tokenizer_there_is_no_preview(client: Client, organization: Organization) -> None:
    make_base_model("absent", organization)
    dataset = create(client, make_file(organization, GOOD), model="absent").json()

    response = client.get(f"/v1/datasets/{dataset['id']}/preview")

    assert (dataset["num_tokens"], response.status_code) == (None, 400)
    assert response.json()["error"]["code"] == "tokenizer_not_available"


def test_a_dataset_whose_file_was_deleted_remains_but_has_no_preview(
    client: Client, transactional_db: None, organization: Organization, model: BaseModel
) -> None:
    file = make_file(organization, GOOD)
    dataset = create(client, file, model="tiny").json()
    file_delete(file=file)

    assert client.get(f"/v1/datasets/{dataset['id']}").status_code == 200
    assert client.get(f"/v1/datasets/{dataset['id']}/preview").json()["error"]["code"] == "file_not_found"
    assert create(client, file).status_code == 404


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"file_id": "file-none"}, 404, "file_id"),
        ({"model": "none"}, 404, "model"),
        ({"unknown": 1}, 400, "unknown"),
    ],
)
def test_the_error_for_a_bad_request_names_the_field(
    client: Client, organization: Organization, values: dict[str, Any], status: int, param: str
) -> None:
    response = create(client, make_file(organization, GOOD), **values)

    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert not Dataset.objects.exists()


def test_datasets_of_another_organization_are_not_found(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    dataset = create(client, make_file(organization, GOOD)).json()
    other_client = client_of(other_organization)

    for path in ("", "/errors", "/preview"):
        assert other_client.get(f"/v1/datasets/{dataset['id']}{path}").status_code == 404
    assert other_client.delete(f"/v1/datasets/{dataset['id']}").status_code == 404
    assert other_client.get("/v1/datasets").json()["data"] == []
    assert create(other_client, make_file(organization, GOOD)).status_code == 404
