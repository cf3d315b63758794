"""Promise S11 of docs/reliability.md: no member of a body can write a field that only the server may write."""

import json
from typing import Any

import pytest
from django.apps import apps
from django.db import models
from django.test import Client

from control.operations.openapi.views import generate
from control.serving.gateway.wire import WIRES
from control.tenants.accounts.models import Organization
from tests.control.calls import form_file, path_of
from tests.control.routes import Route, api_routes
from tests.control.world import FORM, NO_BODY, World, example_bodies

SENTINEL = "written-by-a-stranger"
PROJECT_MODELS = [model for model in apps.get_models() if model.__module__.startswith("control.")]
# The names of all columns, which the tests try to write.
FIELDS = sorted({field.attname for model in PROJECT_MODELS for field in model._meta.concrete_fields}
                | {field.name for model in PROJECT_MODELS for field in model._meta.concrete_fields})  # fmt: skip
# All operations that take a body, except those of the gateway, which passes bodies on to the engine. The engine refuses
# unknown members.
WRITES = [
    (route, method)
    for route in api_routes()
    for method in route.methods
    if f"{method} {route.path}" in example_bodies() and route.path not in WIRES
]


def params(*kinds: Any) -> list[Any]:
    return [
        pytest.param(route, method, id=f"{method} {route.path}")
        for route, method in WRITES
        if any(example_bodies()[f"{method} {route.path}"] is kind for kind in kinds)
    ]


def json_bodies() -> list[Any]:
    return [
        pytest.param(route, method, id=f"{method} {route.path}")
        for route, method in WRITES
        if all(example_bodies()[f"{method} {route.path}"] is not kind for kind in (FORM, NO_BODY))
    ]


@pytest.fixture
def world(organization: Organization) -> World:
    return World(organization)


def all_rows_as_json() -> str:
    """Every row of every table of the project."""
    return json.dumps([list(model._default_manager.values()) for model in PROJECT_MODELS], default=str)


def send(client: Client, method: str, path: str, body: dict[str, Any]) -> Any:
    return client.generic(method, path, json.dumps(body), "application/json")


@pytest.mark.parametrize(("route", "method"), json_bodies())
def test_the_error_for_an_undeclared_member_names_it(route: Route, method: str, client: Client, world: World) -> None:
    """Adds one undeclared member at a time, because an error for one member would hide that another is accepted."""
    body, path = example_bodies()[f"{method} {route.path}"].make(world), path_of(route, world)

    for name in sorted(set(FIELDS) - declared_members(route, method)):
        error = send(client, method, path, {**body, name: {"x": SENTINEL}}).json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", name)

    assert SENTINEL not in all_rows_as_json()


@pytest.mark.parametrize(("route", "method"), params(NO_BODY))
def test_an_operation_that_takes_no_body_ignores_a_body(
    route: Route, method: str, client: Client, world: World
) -> None:
    response = send(client, method, path_of(route, world), dict.fromkeys(FIELDS, SENTINEL))

    assert response.status_code < 500
    assert SENTINEL not in all_rows_as_json()


@pytest.mark.parametrize(("route", "method"), params(FORM))
def test_a_form_writes_only_its_declared_fields(route: Route, method: str, client: Client, world: World) -> None:
    fields = {name: SENTINEL for name in FIELDS if name not in ("file", "data", "purpose")}

    response = client.post(path_of(route, world), {**fields, **form_file(route), "purpose": "batch"})

    assert response.status_code < 500
    assert SENTINEL not in all_rows_as_json()


def test_the_search_of_all_rows_finds_a_sentinel_that_was_written(world: World) -> None:
    Organization.objects.filter(pk=world.organization.pk).update(name=SENTINEL)

    assert SENTINEL in all_rows_as_json()
    assert issubclass(PROJECT_MODELS[0], models.Model)


def declared_members(route: Route, method: str) -> set[str]:
    """The members that the OpenAPI document declares for the operation's body."""
    document = generate()
    operation = document["paths"][route.path][method.lower()]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    name = schema["$ref"].rpartition("/")[2]
    return set(document["components"]["schemas"][name]["properties"])
