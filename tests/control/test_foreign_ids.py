"""Promises S1 and S18 of docs/reliability.md: a foreign id is refused like an id that does not exist.

An id is foreign if its object belongs to another organization or, for the key of a project, to another project of the
organization. The tests compare the response to a foreign id with the response to an id that does not exist: their texts
are equal, and both requests send the same queries to the database, so that their times are similar. The tests cover ids
in the paths and bodies of all operations. They are generated from the URL table, and fail for a new operation that
lacks an example in the files `examples.py` (see tests/control/world.py).
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from tests.control.calls import METHODS_WITH_BODY, call, path_of
from tests.control.factories import client_of, make_organization
from tests.control.routes import Route, api_routes
from tests.control.world import World, example_bodies, with_reference

OPERATIONS = [(route, method) for route in api_routes() for method in route.methods]
BY_PATH = [
    pytest.param(route, method, parameter, id=f"{method} {route.path} {parameter}")
    for route, method in OPERATIONS
    for parameter in route.id_parameters
]
BY_BODY = [
    pytest.param(route, method, member, kind, id=f"{method} {route.path} {member}")
    for route, method in OPERATIONS
    if f"{method} {route.path}" in example_bodies()
    for member, kind in example_bodies()[f"{method} {route.path}"].references.items()
]
LISTS = [route.path for route, method in OPERATIONS if method == "GET" and not route.parameters]
_ID = re.compile(r"(?P<prefix>[a-z]+[_-])[0-9a-f]+")
_VALUE = re.compile(r"""'(?:[^']|'')*'|\b\d+\b|"s\d+_x\d+\"""")  # strings, numbers and names of savepoints in SQL


@pytest.fixture(params=["another organization", "another project"])
def worlds(request: pytest.FixtureRequest, organization: Organization) -> tuple[World, World]:
    """The caller's objects, and the objects that the caller may not see."""
    if request.param == "another organization":
        return World(organization), World(make_organization())
    own, other = (project_create(organization=organization, name=name) for name in ("own", "other"))
    return World(organization, own), World(organization, other)


@pytest.fixture
def own_world(worlds: tuple[World, World]) -> World:
    return worlds[0]


@pytest.fixture
def foreign_world(worlds: tuple[World, World]) -> World:
    return worlds[1]


@pytest.fixture
def client(own_world: World) -> Client:
    return client_of(own_world.organization, project=own_world.own_project)


def unknown_id_like(foreign: str) -> str:
    """Returns an id of the same kind that no object has: some operations read the kind from the id."""
    kind = _ID.fullmatch(foreign)
    return "nothing-of-this-name" if kind is None else kind["prefix"] + "9" * 9


def check_indistinguishable_from_unknown_id(foreign: str, request_of: Callable[[str], Any]) -> None:
    """Args: foreign: an id of another organization. request_of: sends a request with the given id."""
    unknown = unknown_id_like(foreign)
    request_of(unknown)  # the first request with a key also records that the key is used

    (response, queries), (other_response, other_queries) = (
        response_and_queries(request_of, foreign),
        response_and_queries(request_of, unknown),
    )

    assert response.status_code == 404 or needs_organization_key(response)
    assert response.content.decode().replace(foreign, unknown) == other_response.content.decode(), (
        "the text of the response reveals that the id exists"
    )
    assert queries == other_queries, "the queries reveal that the id exists"


def needs_organization_key(response: Any) -> bool:
    return bool(response.status_code == 403 and response.json()["error"]["code"] == "organization_key_required")


def response_and_queries(request_of: Callable[[str], Any], object_id: str) -> tuple[Any, list[str]]:
    """Returns the response, and the request's database queries with every value replaced by a question mark."""
    with CaptureQueriesContext(connection) as queries:
        response = request_of(object_id)
    return response, [_VALUE.sub("?", query["sql"]) for query in queries.captured_queries]


@pytest.mark.parametrize(
    ("route", "method"),
    [pytest.param(*operation, id=f"{operation[1]} {operation[0].path}") for operation in OPERATIONS],
)
def test_every_operation_has_the_example_body_and_ids_that_the_generated_tests_need(
    route: Route, method: str, own_world: World
) -> None:
    assert method not in METHODS_WITH_BODY or f"{method} {route.path}" in example_bodies()
    assert all(own_world.id_of(route.kind_of(name)) for name in route.parameters)


@pytest.mark.parametrize(
    ("route", "method"),
    [pytest.param(*operation, id=f"{operation[1]} {operation[0].path}") for operation in OPERATIONS],
)
def test_requests_with_own_ids_find_their_objects(route: Route, method: str, client: Client, own_world: World) -> None:
    """If requests with own ids were refused as well, the tests below would pass without testing anything."""
    response = call(client, own_world, method, route, path_of(route, own_world))
    missing = response.status_code == 404 and response.json()["error"]["code"] not in (
        "plot_not_found",  # the speculator was found, but it has no plot
        "model_not_found",  # the body for the gateway names a model that does not exist
    )

    assert not missing, response.content
    assert response.status_code < 500


@pytest.mark.parametrize(("route", "method", "parameter"), BY_PATH)
def test_a_foreign_id_in_the_path_is_not_found(
    route: Route, method: str, parameter: str, client: Client, own_world: World, foreign_world: World
) -> None:
    def request_of(object_id: str) -> Any:
        return call(client, own_world, method, route, path_of(route, own_world, **{parameter: object_id}))

    check_indistinguishable_from_unknown_id(foreign_world.id_of(route.kind_of(parameter)), request_of)


@pytest.mark.parametrize(("route", "method", "member", "kind"), BY_BODY)
def test_a_foreign_id_in_the_body_is_not_found(
    route: Route, method: str, member: str, kind: str, client: Client, own_world: World, foreign_world: World
) -> None:
    body, path = example_bodies()[f"{method} {route.path}"].make(own_world), path_of(route, own_world)

    def request_of(object_id: str) -> Any:
        return call(client, own_world, method, route, path, with_reference(body, member, object_id))

    check_indistinguishable_from_unknown_id(foreign_world.id_of(kind), request_of)


def test_lists_show_no_foreign_objects(client: Client, own_world: World, foreign_world: World) -> None:
    foreign = foreign_world.ids_of_all_objects()
    own_world.ids_of_all_objects()

    for path in LISTS:
        for query in ("", *(f"{name}={value}" for name, value in foreign.items()), "start_time=0"):
            content = client.get(f"{path}?{query}").content.decode()
            content = content.replace(query.partition("=")[2], "")
            shown = [value for value in foreign.values() if value in content]
            assert shown == [], f"GET {path}?{query}"
            assert not shows_owner(foreign_world, content), f"GET {path}?{query}"


def test_a_list_that_starts_after_a_foreign_id_does_not_reveal_its_owner(
    client: Client, own_world: World, foreign_world: World
) -> None:
    own_world.ids_of_all_objects()
    foreign_ids = foreign_world.ids_of_all_objects().values()
    for path in LISTS:
        for foreign in foreign_ids:
            response = client.get(f"{path}?after={foreign}")
            assert response.status_code in (200, 400) or needs_organization_key(response), path
            assert not shows_owner(foreign_world, response.content.decode().replace(foreign, "")), path


def shows_owner(world: World, content: str) -> bool:
    return (world.own_project or world.organization).pk in content
