"""Promise S1 of docs/reliability.md: objects of another organization are not found by any route or part of a request.

The tests are generated from the URL table: a new operation without an entry in `bodies` or `world` fails here. The text
of a response does not reveal whether an id belongs to another organization or does not exist. Its time does not reveal
it either, because both cases send the same queries to the database.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from control.tenants.accounts.models import Organization
from tests.control.calls import WRITING, call, path_of
from tests.control.routes import Route, api_routes
from tests.control.world import World, example_bodies, with_reference

OPERATIONS = [(route, method) for route in api_routes() for method in route.methods]
BY_PATH = [
    pytest.param(route, method, parameter, id=f"{method} {route.path} {parameter}")
    for route, method in OPERATIONS
    for parameter in route.parameters
]
BY_BODY = [
    pytest.param(route, method, member, kind, id=f"{method} {route.path} {member}")
    for route, method in OPERATIONS
    if f"{method} {route.path}" in example_bodies()
    for member, kind in example_bodies()[f"{method} {route.path}"].refers.items()
]
LISTS = [pytest.param(route, id=route.path) for route, method in OPERATIONS if method == "GET" and not route.parameters]
UNKNOWN_ID = "nothing-of-this-name"
_VALUE = re.compile(r"""'(?:[^']|'')*'|\b\d+\b|"s\d+_x\d+\"""")  # includes names of savepoints


@pytest.fixture
def ours(organization: Organization) -> World:
    return World(organization)


@pytest.fixture
def theirs(other_organization: Organization) -> World:
    return World(other_organization)


def check_indistinguishable_from_unknown_id(foreign: str, request_of: Callable[[str], Any]) -> None:
    """Args: foreign: an id of another organization. request_of: sends a request with the given id."""
    request_of(UNKNOWN_ID)  # a first request does more, such as recording the first use of its key

    (response, queries), (other_response, other_queries) = (
        response_and_queries(request_of, foreign),
        response_and_queries(request_of, UNKNOWN_ID),
    )

    assert response.status_code == 404
    assert response.content.decode().replace(foreign, UNKNOWN_ID) == other_response.content.decode(), (
        "the text of the response reveals that the id exists"
    )
    assert queries == other_queries, "the queries reveal that the id exists"


def response_and_queries(request_of: Callable[[str], Any], identity: str) -> tuple[Any, list[str]]:
    """Returns the response, and the request's database queries with every value replaced by a question mark."""
    with CaptureQueriesContext(connection) as queries:
        response = request_of(identity)
    return response, [_VALUE.sub("?", query["sql"]) for query in queries.captured_queries]


@pytest.mark.parametrize(("route", "method"), [pytest.param(*o, id=f"{o[1]} {o[0].path}") for o in OPERATIONS])
def test_every_operation_has_a_body_and_ids_for_the_generated_tests(route: Route, method: str, ours: World) -> None:
    assert method not in WRITING or f"{method} {route.path}" in example_bodies()
    assert all(ours.id_of(route.kind_of(name)) for name in route.parameters)


@pytest.mark.parametrize(("route", "method"), [pytest.param(*o, id=f"{o[1]} {o[0].path}") for o in OPERATIONS])
def test_requests_with_ids_of_the_own_organization_find_their_objects(
    route: Route, method: str, client: Client, ours: World
) -> None:
    """If a request with our own ids were refused, the tests below would pass without showing anything."""
    response = call(client, ours, method, route, path_of(route, ours))
    missing = response.status_code == 404 and response.json()["error"]["code"] not in (
        "plot_not_found",  # the speculator was found, but it has no plot
        "model_not_found",  # the body for the gateway names a model that does not exist
    )

    assert not missing, response.content
    assert response.status_code < 500


@pytest.mark.parametrize(("route", "method", "parameter"), BY_PATH)
def test_an_id_of_another_organization_in_the_path_is_not_found(
    route: Route, method: str, parameter: str, client: Client, ours: World, theirs: World
) -> None:
    def request_of(identity: str) -> Any:
        return call(client, ours, method, route, path_of(route, ours, **{parameter: identity}))

    check_indistinguishable_from_unknown_id(theirs.id_of(route.kind_of(parameter)), request_of)


@pytest.mark.parametrize(("route", "method", "member", "kind"), BY_BODY)
def test_an_id_of_another_organization_in_the_body_is_not_found(
    route: Route, method: str, member: str, kind: str, client: Client, ours: World, theirs: World
) -> None:
    body, path = example_bodies()[f"{method} {route.path}"].make(ours), path_of(route, ours)

    def request_of(identity: str) -> Any:
        return call(client, ours, method, route, path, with_reference(body, member, identity))

    check_indistinguishable_from_unknown_id(theirs.id_of(kind), request_of)


@pytest.mark.parametrize("route", LISTS)
def test_lists_show_no_objects_of_another_organization(
    route: Route, client: Client, ours: World, theirs: World
) -> None:
    foreign = theirs.everything()
    ours.everything()

    for query in ("", *(f"{name}={value}" for name, value in foreign.items()), "start_time=0"):
        shown = client.get(f"{route.path}?{query}").content.decode()
        assert [value for value in foreign.values() if value in shown.replace(query.partition("=")[2], "")] == []
        assert theirs.organization.pk not in shown


@pytest.mark.parametrize("route", LISTS)
def test_a_page_cannot_start_after_a_row_of_another_organization(
    route: Route, client: Client, ours: World, theirs: World
) -> None:
    ours.everything()
    for foreign in theirs.everything().values():
        response = client.get(f"{route.path}?after={foreign}")
        assert response.status_code in (200, 400)
        assert theirs.organization.pk not in response.content.decode()
