"""JSON bodies that Python's parser may accept, but that databases or clients cannot process."""

from typing import Any

import pytest
from django.test import Client

from control.core.api.json_body import MAX_JSON_BYTES
from control.tenants.accounts.models import Organization
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import chat_row, make_base_model, make_file

pytestmark = pytest.mark.django_db


def status_and_code(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/pipelines", "/v1/deployments", "/v1/files"])
@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"name":' + b"[" * 100 + b"]" * 100 + b"}",
        b'{"name": 1e999}',
        b'{"name": -Infinity}',
        b'{"name": NaN}',
        b'{"name": ' + b"9" * 5000 + b"}",
        b'{"name": "\xff"}',
    ],
)
def test_malformed_or_extreme_json_is_refused(client: Client, path: str, body: bytes) -> None:
    response = client.generic("POST", path, body, content_type="application/json")

    assert status_and_code(response) == (400, "invalid_json")


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/pipelines", "/v1/deployments"])
def test_a_json_body_over_the_size_limit_is_refused_before_it_is_parsed(
    client: Client, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr("control.core.api.strict_json.loads", lambda raw: pytest.fail("was parsed"))
    body = b'{"name": [' + b"[]," * MAX_JSON_BYTES + b"[]]}"

    response = client.generic("POST", path, body, content_type="application/json")

    assert status_and_code(response) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        ('"\\ud800"', "invalid_value", "training.steps"),
        ('{"\\udfff": 1}', "invalid_value", "training.steps"),
        ('[1, "\\u0000"]', "invalid_value", "training.steps.1"),
        ("1e999", "invalid_json", None),
    ],
)
def test_a_pipeline_with_values_that_cannot_be_stored_is_refused_and_pipelines_can_still_be_listed(
    client: Client, organization: Organization, value: str, code: str, param: str | None
) -> None:
    prompts = make_file(organization, [chat_row(f"row-{n}") for n in range(10)])
    body = f'{{"name": "p", "model": "{make_base_model().name}", "prompts_file": "{prompts.pk}", '

    response = client.post(
        "/v1/pipelines", body + f'"training": {{"steps": {value}}}}}', content_type="application/json"
    )

    assert (status_and_code(response), response.json()["error"]["param"]) == ((400, code), param)
    assert not Pipeline.objects.exists()
    assert client.get("/v1/pipelines").json()["data"] == []


def test_a_pair_of_surrogate_escapes_is_accepted(client: Client) -> None:
    response = client.post(
        "/v1/deployments", rb'{"name": "\ud83d\ude00", "model": "m"}', content_type="application/json"
    )

    assert status_and_code(response) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/batches", {"input_file_id": "f", "endpoint": "e", "completion_window": "24h", "modle": "m"}),
        ("/v1/deployments", {"name": "a", "model": "m", "speculator": "spec_1"}),
    ],
)
def test_the_error_for_an_unknown_parameter_names_it(client: Client, path: str, body: dict[str, str]) -> None:
    response = client.post(path, body, content_type="application/json")

    assert status_and_code(response) == (400, "unknown_parameter")
    assert response.json()["error"]["param"] == list(body)[-1]
