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
# Lists that are empty although `World.ids_of_all_objects` has created an object of each kind.
MAY_BE_EMPTY = (
    "GET /v1/audit_events",
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


def test_the_document_needs_no_key(db: None) -> None:
    response = Client().get(DOCUMENT_PATH)

    assert response.status_code == 200
    assert response.json()["info"]["title"] == "Slipstream"


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
    """Batches are created with status 200, as OpenAI does it, which is also the status of plans."""
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


def test_operations_with_a_body_declare_it() -> None:
    for name, body in example_bodies().items():
        method, path = name.split(" ")
        assert ("requestBody" in generate()["paths"][path][method.lower()]) == (body is not NO_BODY), name
