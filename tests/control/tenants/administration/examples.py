"""Example objects and request bodies of administration, for the tests that cover all routes."""

from control.tenants.accounts.models import Member, Project
from control.tenants.administration.services import member_invite, project_create
from tests.control.factories import make_key
from tests.control.world import NO_BODY, Bodies, Body, Ids, World


def project(world: World) -> Project:
    return project_create(organization=world.organization, name=f"project {world.tag}")


def member(world: World) -> Member:
    return member_invite(organization=world.organization, email=f"{world.tag}@example.com", role=Member.Role.MEMBER)


def key_id(world: World) -> str:
    return make_key(world.organization, project=world.own_project)[0].pk


IDS: Ids = {
    "key_id": lambda world: world.key_id,
    "member_id": lambda world: world.member.public_id,
    "project_id": lambda world: world.project.pk,
}
BODIES: Bodies = {
    "POST /v1/api_keys": Body(
        lambda world: {"name": "new"},
        {"project_id": "project_id", "member_id": "member_id", "deployment_ids.0": "deployment_id"},
    ),
    "POST /v1/api_keys/{key_id}/rotate": Body(lambda world: {"grace_seconds": 60}),
    "POST /v1/members": Body(lambda world: {"email": "new@example.com"}),
    "PATCH /v1/members/{member_id}": Body(lambda world: {"role": "owner"}),
    "POST /v1/members/{member_id}/invitation": NO_BODY,
    "POST /v1/projects": Body(lambda world: {"name": "new"}),
    "PATCH /v1/projects/{project_id}": Body(lambda world: {"name": "new"}),
    "POST /v1/projects/{project_id}/archive": NO_BODY,
}
