"""The OpenAPI document: it is valid and complete, equals the one in docs/, and matches real responses."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client
from openapi_spec_validator import OpenAPIV31SpecValidator
from pydantic import TypeAdapter

from control.core.api.operation import Operation, operation_of
from control.operations.openapi.examples import recorded_examples
from control.operations.openapi.gateway import OPERATIONS
from control.operations.openapi.views import generate
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from tests.control.calls import call, path_of
from tests.control.factories import add_usage
from tests.control.routes import Route, api_routes
from tests.control.world import NO_BODY, World, example_bodies
from tests.source_tree import ROOT

SNAPSHOT = ROOT / "docs" / "openapi.yaml"
ROUTES = api_routes()
OPERATION_PARAMS = [
    pytest.param(route, method, id=f"{method} {route.path}") for route in ROUTES for method in route.methods
]
DOCUMENT_PATH = "/v1/openapi.json"
NEEDS_ENGINE = tuple(f"POST {path}" for path in OPERATIONS)
# Lists that may be empty although `World.ids_of_all_objects` has created an object of each kind.
MAY_BE_EMPTY = (
    "GET /v1/audit_events",
    "GET /v1/base_speculators",  # they belong to no organization, so the examples of an organization have none
    "GET /v1/hardware",
    "GET /v1/uploads/{upload_id}/parts",
    "GET /v1/datasets/{dataset_id}/errors",
    "GET /v1/jobs/{job_id}/events",
    "GET /v1/fine_tuning/jobs/{job_id}/checkpoints",
)


def declared_operation(route: Route, method: str) -> Operation:
    operation = operation_of(route.view, method) if isinstance(route.view, type) else OPERATIONS[route.path]
    assert operation is not None, f"{method} {route.path} declares no operation"
    return operation


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]


def test_the_document_is_generated_without_a_warning_and_equals_the_one_in_docs(tmp_path: Path) -> None:
    made = tmp_path / "openapi.yaml"
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(made))

    assert made.read_text() == SNAPSHOT.read_text(), f"python manage.py spectacular --file {SNAPSHOT.relative_to(ROOT)}"


def test_the_document_is_valid_openapi() -> None:
    document = json.loads(json.dumps(generate()))

    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


def test_the_document_has_exactly_the_operations_of_the_url_table() -> None:
    documented = {(path, method.upper()) for path, methods in generate()["paths"].items() for method in methods}

    assert documented == {(route.path, method) for route in ROUTES for method in route.methods}
    assert all(declared_operation(route, method) for route in ROUTES for method in route.methods)


def test_operations_have_unique_ids_and_document_their_errors() -> None:
    documented = operations(generate())
    names = [operation["operationId"] for operation in documented]

    assert len(names) == len(set(names))
    assert all({"4XX", "5XX"} <= operation["responses"].keys() for operation in documented)
    assert all(operation["security"] == [{"key": []}, {"x-api-key": []}] for operation in documented)


def test_the_document_is_served_without_an_api_key(db: None) -> None:
    response = Client().get(DOCUMENT_PATH)

    assert response.status_code == 200
    assert response.json()["info"]["title"] == "Slipstream"


def test_every_operation_has_a_summary_of_its_own_an_example_and_named_errors() -> None:
    documented = operations(generate())
    summaries = [operation["summary"] for operation in documented]
    without_errors = [operation["operationId"] for operation in documented if not statuses_with_codes(operation)]
    with_crashes = [operation["operationId"] for operation in documented if "500" in operation["responses"]]

    assert len(summaries) == len(set(summaries))
    assert all(summary[0].isupper() and not summary.endswith(".") for summary in summaries)
    assert [name for name in map(operation_without_example, documented) if name] == []
    assert without_errors == []
    assert with_crashes == []


def statuses_with_codes(operation: dict[str, Any]) -> set[str]:
    """Returns the 4xx statuses for which the document names the error codes."""
    return {status for status in operation["responses"] if status.startswith("4") and status != "4XX"}


def operation_without_example(operation: dict[str, Any]) -> str | None:
    """Returns the id of an operation whose JSON response or body has no example."""
    described = [operation["responses"][min(status for status in operation["responses"] if status < "3")]]
    body = operation.get("requestBody", {"content": {}})
    described += [body] if "multipart/form-data" not in body["content"] else []  # a file has no example
    bodies = [one["content"]["application/json"] for one in described if "application/json" in one.get("content", {})]
    return None if all("example" in body for body in bodies) else str(operation["operationId"])


def test_examples_match_the_declared_requests_and_responses() -> None:
    checked = 0
    for route in ROUTES:
        for method in route.methods:
            operation = declared_operation(route, method)
            recorded = recorded_examples().get(operation.id, {})
            if operation.request is not None and "request" in recorded:
                operation.request.model_validate(recorded["request"])
            if not isinstance(operation.response, str) and "response" in recorded:
                TypeAdapter(operation.response).validate_python(recorded["response"], strict=True)
                checked += 1
    assert checked > 100


@pytest.mark.parametrize(("route", "method"), OPERATION_PARAMS)
def test_responses_match_the_document(route: Route, method: str, client: Client, organization: Organization) -> None:
    """Each response has exactly the documented members, with the documented types.

    A list that is not in MAY_BE_EMPTY has an entry, because only entries can be checked.
    """
    name = f"{method} {route.path}"
    operation, world = declared_operation(route, method), World(organization)
    if method == "GET" and not route.path.endswith("}"):
        world.ids_of_all_objects()  # so that lists have entries; `path_of` creates the objects of other operations
    add_usage(Caller(organization_id=organization.pk))
    query = f"?start_time={int(time.time()) - 1}" if route.path.startswith("/v1/organization/") else ""

    response = call(client, world, method, route, path_of(route, world) + query)

    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        if response.status_code == 409:
            assert "Retry-After" in response or response["x-should-retry"] == "false"
        assert name in NEEDS_ENGINE or response.status_code in (400, 404, 409), response.content
        return
    assert response.status_code == operation.status
    if isinstance(operation.response, str):
        assert response.headers["Content-Type"].partition(";")[0] == operation.response
        return
    body = response.json()
    TypeAdapter(operation.response).validate_python(body, strict=True)
    if body["object"] == "page":
        assert body["data"][0].get("results", True), "the list is empty, so nothing was checked"
    if body.get("object") == "list" and "first_id" in body and name not in MAY_BE_EMPTY:
        assert body["data"], "the list is empty, so nothing was checked"


@pytest.mark.parametrize("path", ["deployments", "batches", "distillations", "evaluations", "pipelines"])
def test_a_plan_and_the_created_object_are_both_documented(path: str) -> None:
    """A plan has status 200. A new batch has status 200 as well, as in OpenAI's API. One status may therefore have two
    schemas."""
    document = generate()
    responses = document["paths"][f"/v1/{path}"]["post"]["responses"]
    schemas = [
        schema
        for status, response in responses.items()
        if status.startswith("2")
        for schema in _alternatives(document, response["content"]["application/json"]["schema"])
    ]
    is_plan = [name.endswith("Plan") for name in schemas]

    assert sorted(is_plan) == [False, True], schemas


def _alternatives(document: dict[str, Any], reference: dict[str, str]) -> list[str]:
    name = reference["$ref"].rpartition("/")[2]
    either = document["components"]["schemas"][name].get("oneOf")
    return [name] if either is None else [part["$ref"].rpartition("/")[2] for part in either]


def test_exactly_the_operations_that_take_a_body_declare_one() -> None:
    for name, body in example_bodies().items():
        method, path = name.split(" ")
        assert ("requestBody" in generate()["paths"][path][method.lower()]) == (body is not NO_BODY), name
