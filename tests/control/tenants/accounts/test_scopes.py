"""Every route declares the scope that it needs, and refuses keys without that scope before it looks up any object."""

import pytest
from django.test import Client

from control.tenants.accounts.models import Organization
from control.tenants.accounts.scopes import ADMIN, EVERYTHING, INFERENCE, RESOURCES, SCOPES, is_granted, scope_needed
from control.tenants.authentication.views import OrganizationView
from tests.control.factories import make_key
from tests.control.routes import Route, api_routes

# The scopes of views that are functions, which cannot declare a scope themselves.
SCOPE_OF_FUNCTION = {"generate": INFERENCE}
ROUTES = api_routes()
OPERATIONS = [pytest.param(route, method, id=f"{method} {route.path}") for route in ROUTES for method in route.methods]


def declared_scope(route: Route) -> str | None:
    """Returns the scope that the view or a base class declares, but not the default of `OrganizationView`."""
    if not isinstance(route.view, type):
        return SCOPE_OF_FUNCTION.get(route.view.__name__)
    bases = [base for base in route.view.__mro__ if issubclass(base, OrganizationView) and base is not OrganizationView]
    return next((vars(base)["scope"] for base in bases if "scope" in vars(base)), None)


def client_with(organization: Organization, *scopes: str) -> Client:
    _, token = make_key(organization, scopes=list(scopes))
    return Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_route_declares_an_existing_scope(route: Route) -> None:
    assert declared_scope(route) in {*RESOURCES, ADMIN, INFERENCE, EVERYTHING}, (
        f"{route.view.__qualname__} declares no scope"
    )


@pytest.mark.parametrize(("route", "method"), OPERATIONS)
def test_a_key_with_all_scopes_except_the_needed_one_is_refused(
    route: Route, method: str, organization: Organization
) -> None:
    needed = scope_needed(declared_scope(route) or ADMIN, method)
    others = [scope for scope in SCOPES if not is_granted(needed, [scope])]

    response = client_with(organization, *others).generic(method, route.path.format_map(UnknownIds()))

    assert response.status_code == 403
    assert response.json()["error"]["code"] == "insufficient_scope"
    assert repr(needed) in response.json()["error"]["message"]


@pytest.mark.parametrize(("route", "method"), OPERATIONS)
def test_a_key_with_only_the_needed_scope_is_accepted(route: Route, method: str, organization: Organization) -> None:
    needed = scope_needed(declared_scope(route) or ADMIN, method)

    response = client_with(organization, needed).generic(method, route.path.format_map(UnknownIds()))

    assert response.status_code not in (401, 403)


def test_a_view_without_a_declared_scope_needs_the_scope_of_administrators() -> None:
    assert OrganizationView.scope == ADMIN


@pytest.mark.parametrize(
    ("needed", "scopes_of_key", "granted"),
    [
        ("files:read", ["files:read"], True),
        ("files:read", ["files:*"], True),
        ("files:read", ["*"], True),
        ("files:write", ["files:read"], False),
        ("files:read", ["batches:*", "inference", "admin"], False),
        ("inference", ["inference"], True),
        ("admin", ["files:*"], False),
        ("files:*", ["files:read", "files:write"], False),
        ("*", ["admin", "files:*"], False),
        ("files:read", [], False),
    ],
)
def test_a_scope_is_granted_by_the_same_scope_and_by_the_wildcards_of_its_resource_and_of_everything(
    needed: str, scopes_of_key: list[str], granted: bool
) -> None:
    assert is_granted(needed, scopes_of_key) is granted


class UnknownIds(dict[str, str]):
    """Fills each parameter of a path with an id that does not exist."""

    def __missing__(self, name: str) -> str:
        return "nothing"
