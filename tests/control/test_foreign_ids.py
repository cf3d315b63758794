"""S1: objects of another organization are not found, on any route and in any part of a request.

The tests are generated from the URL table: a new operation without an entry in `bodies` or `world` fails here. Neither
the text nor the time of an answer reveals whether an id is another organization's or does not exist, because both
cases send the same queries to the database.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from control.tenants.accounts.models import Organization
from tests.control.bodies import BODIES, with_reference
from tests.control.calls import WRITING, call, path_of
from tests.control.routes import Route, api_routes
from tests.control.world import World

OPERATIONS = [(route, method) for route in api_routes() for method in route.methods]
BY_PATH = [
    pytest.param(route, method, parameter, id=f"{method} {route.path} {parameter}")
    for route, method in OPERATIONS
    for parameter in route.parameters
]
BY_BODY = [
    pytest.param(route, method, member, kind, id=f"{method} {route.path} {member}")
    for route, method in OPERATIONS
    if f"{method} {route.path}" in BODIES
    for member, kind in BODIES[f"{method} {route.path}"].refers.items()
]
LISTS = [pytest.param(route, id=route.path) for route, method in OPERATIONS if method == "GET" and not route.parameters]
NOWHERE = "nothing-of-this-name"
_VALUE = re.compile(r"""'(?:[^']|'')*'|\b\d+\b|"s\d+_x\d+\"""")  # includes names of savepoints


@pytest.fixture
def ours(organization: Organization) -> World:
    return World(organization)


@pytest.fixture
def theirs(other_organization: Organization) -> World:
    return World(other_organization)


def check_same_answer(foreign: str, request_of: Callable[[str], Any]) -> None:
    """Args: request_of: sends a request with the given id."""
    request_of(NOWHERE)  # a first request does more, such as recording the first use of its key

    (answer, asked), (other, asked_for_other) = listen(request_of, foreign), listen(request_of, NOWHERE)

    assert answer.status_code == 404
    assert answer.content.decode().replace(foreign, NOWHERE) == other.content.decode(), (
        "the text of the answer reveals that the id exists"
    )
    assert asked == asked_for_other, "the queries reveal that the id exists"


def listen(request_of: Callable[[str], Any], identity: str) -> tuple[Any, list[str]]:
    """Returns: the answer, and the queries sent to the database for it, without their values."""
    with CaptureQueriesContext(connection) as queries:
        answer = request_of(identity)
    return answer, [_VALUE.sub("?", query["sql"]) for query in queries.captured_queries]


@pytest.mark.parametrize(("route", "method"), [pytest.param(*o, id=f"{o[1]} {o[0].path}") for o in OPERATIONS])
def test_every_operation_has_a_test_body_and_test_ids(route: Route, method: str, ours: World) -> None:
    assert method not in WRITING or f"{method} {route.path}" in BODIES
    assert all(ours.id_of(route.kind_of(name)) for name in route.parameters)


@pytest.mark.parametrize(("route", "method"), [pytest.param(*o, id=f"{o[1]} {o[0].path}") for o in OPERATIONS])
def test_the_same_requests_with_own_ids_find_their_objects(
    route: Route, method: str, client: Client, ours: World
) -> None:
    """Otherwise the tests below could pass for another reason."""
    response = call(client, ours, method, route, path_of(route, ours))
    missing = response.status_code == 404 and response.json()["error"]["code"] not in (
        "plot_not_found",  # the speculator was found, but it has no plot
        "model_not_found",  # the gateway, which is not asked for a deployment of ours here
    )

    assert not missing, response.content
    assert response.status_code < 500


@pytest.mark.parametrize(("route", "method", "parameter"), BY_PATH)
def test_an_id_of_another_organization_in_the_path_is_not_found(
    route: Route, method: str, parameter: str, client: Client, ours: World, theirs: World
) -> None:
    def request_of(identity: str) -> Any:
        return call(client, ours, method, route, path_of(route, ours, **{parameter: identity}))

    check_same_answer(theirs.id_of(route.kind_of(parameter)), request_of)


@pytest.mark.parametrize(("route", "method", "member", "kind"), BY_BODY)
def test_an_id_of_another_organization_in_the_body_is_not_found(
    route: Route, method: str, member: str, kind: str, client: Client, ours: World, theirs: World
) -> None:
    body, path = BODIES[f"{method} {route.path}"].make(ours), path_of(route, ours)

    def request_of(identity: str) -> Any:
        return call(client, ours, method, route, path, with_reference(body, member, identity))

    check_same_answer(theirs.id_of(kind), request_of)


@pytest.mark.parametrize("route", LISTS)
def test_lists_show_no_objects_of_another_organization(
    route: Route, client: Client, ours: World, theirs: World
) -> None:
    foreign, own = theirs.everything(), ours.everything()

    for query in ("", *(f"{name}={value}" for name, value in foreign.items()), "start_time=0"):
        shown = client.get(f"{route.path}?{query}").content.decode()
        assert [value for value in foreign.values() if value in shown.replace(query.partition("=")[2], "")] == []
        assert theirs.organization.pk not in shown
    assert own, "the list must show rows of its own organization"


@pytest.mark.parametrize("route", LISTS)
def test_a_page_cannot_start_after_a_row_of_another_organization(
    route: Route, client: Client, ours: World, theirs: World
) -> None:
    ours.everything()
    for foreign in theirs.everything().values():
        response = client.get(f"{route.path}?after={foreign}")
        assert response.status_code in (200, 400)
        assert theirs.organization.pk not in response.content.decode()
