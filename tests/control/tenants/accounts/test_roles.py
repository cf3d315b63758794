"""A member's role limits the member's API keys; changing the role or removing the member takes effect at once."""

from typing import Any

import pytest
from django.test import Client

from control.tenants.accounts.models import ApiKey, Member, Organization
from control.tenants.accounts.scopes import ADMIN, INFERENCE, ROLE_SCOPES, SCOPES, is_granted, scope_needed
from control.tenants.administration.services import api_key_create, member_change, member_invite, member_remove
from tests.control.factories import client_of
from tests.control.routes import Route
from tests.control.tenants.accounts.test_scopes import OPERATIONS, UnknownIds, declared_scope

Role = Member.Role


def make_member(organization: Organization, role: str, email: str = "person@example.com") -> Member:
    return member_invite(organization=organization, email=email, role=Role(role))


def key_of(member: Member, **values: Any) -> tuple[ApiKey, Client]:
    key, token = api_key_create(organization=member.organization, name="k", member=member, **values)
    return key, Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})


def post(client: Client, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, body, content_type="application/json")


def test_every_role_has_scopes_that_exist() -> None:
    assert set(ROLE_SCOPES) == set(Role.values)
    assert {scope for scopes in ROLE_SCOPES.values() for scope in scopes} <= set(SCOPES)


@pytest.mark.parametrize(
    ("role", "allowed", "refused"),
    [
        ("owner", [ADMIN, INFERENCE, "spend_caps:write"], []),
        ("member", [INFERENCE, "files:write", "deployments:write", "spend_caps:read"], [ADMIN, "spend_caps:write"]),
        ("billing", ["usage:read", "spend_caps:write"], [ADMIN, INFERENCE, "files:read"]),
        ("read_only", ["files:read", "usage:read"], [ADMIN, INFERENCE, "files:write"]),
    ],
)
def test_the_roles_have_the_scopes_that_the_documentation_lists(
    role: str, allowed: list[str], refused: list[str]
) -> None:
    assert [scope for scope in allowed if not is_granted(scope, ROLE_SCOPES[role])] == []
    assert [scope for scope in refused if is_granted(scope, ROLE_SCOPES[role])] == []


@pytest.mark.parametrize("role", Role.values)
@pytest.mark.parametrize(("route", "method"), OPERATIONS)
def test_on_every_route_a_members_key_can_do_exactly_what_the_role_allows(
    route: Route, method: str, role: str, organization: Organization
) -> None:
    """The key has all scopes. Only the role limits the key; the role was changed after the key had been created."""
    make_member(organization, "owner", "another@example.com")
    member = make_member(organization, "owner")
    _, client = key_of(member)
    Member.objects.filter(pk=member.pk).update(role=role)

    response = client.generic(method, route.path.format_map(UnknownIds()))

    needed = scope_needed(declared_scope(route) or ADMIN, method)
    is_refused = response.status_code == 403 and response.json()["error"]["code"] == "insufficient_scope"
    assert is_refused is not is_granted(needed, ROLE_SCOPES[role])


def test_a_changed_role_limits_existing_keys_at_once_and_the_keys_of_a_removed_member_are_refused(
    organization: Organization,
) -> None:
    make_member(organization, "owner", "another@example.com")
    member = make_member(organization, "owner")
    _, client = key_of(member)
    assert client.get("/v1/api_keys").status_code == 200

    member_change(member=member, role=Role.BILLING)
    assert client.get("/v1/api_keys").status_code == 403
    assert client.get("/v1/usage").status_code == 200

    member_remove(member=member)
    assert client.get("/v1/usage").status_code == 401


def test_a_key_cannot_be_created_with_a_scope_that_its_members_role_lacks(organization: Organization) -> None:
    member = make_member(organization, "read_only")
    client = client_of(organization)

    refused = post(client, "/v1/api_keys", {"name": "k", "member_id": member.public_id, "scopes": ["files:write"]})
    created = post(client, "/v1/api_keys", {"name": "k", "member_id": member.public_id})

    assert (refused.status_code, refused.json()["error"]["param"]) == (403, "scopes")
    assert created.json()["member_id"] == member.public_id
    assert sorted(created.json()["scopes"]) == sorted(ROLE_SCOPES["read_only"])


def test_a_key_created_or_rotated_with_a_members_key_keeps_the_member(organization: Organization) -> None:
    member = make_member(organization, "owner")
    key, client = key_of(member)

    created = post(client, "/v1/api_keys", {"name": "another"}).json()
    rotated = post(client, f"/v1/api_keys/{key.pk}/rotate", {}).json()

    assert {created["member_id"], rotated["member_id"]} == {member.public_id}


def test_a_key_limited_by_a_role_cannot_grant_scopes_that_the_role_lacks(organization: Organization) -> None:
    """The key's own scopes would allow it, but the key's member is no longer an owner."""
    make_member(organization, "owner", "another@example.com")
    member = make_member(organization, "owner")
    _, client = key_of(member, scopes=["*"])
    member_change(member=member, role=Role.MEMBER)

    assert post(client, "/v1/api_keys", {"name": "k", "scopes": ["files:read"]}).status_code == 403


def test_a_key_of_the_organization_is_independent_of_members(organization: Organization) -> None:
    member, client = make_member(organization, "owner"), client_of(organization)
    make_member(organization, "owner", "another@example.com")

    member_remove(member=member)

    assert client.get("/v1/api_keys").status_code == 200
