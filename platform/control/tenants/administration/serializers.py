"""Keys, members and projects on the wire, and what requests may say about them."""

import datetime as dt
from typing import Any

from rest_framework import serializers

from control.core.api.fields import BodyInput, Choice
from control.core.api.times import unix
from control.tenants.accounts.keys import PREFIX
from control.tenants.accounts.models import ApiKey, Member, Project
from control.tenants.accounts.scopes import SCOPES

MAX_GRACE = dt.timedelta(days=30)
DEFAULT_GRACE = dt.timedelta(days=1)
MAX_UNIX = 253_402_300_799  # the last second of the year 9999
MAX_RESTRICTIONS = 100


def api_key_body(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.pk,
        "object": "api_key",
        "name": key.name,
        "hint": f"{PREFIX}{key.pk}…{key.last4}",
        "scopes": key.scopes,
        "project_id": key.project_id,
        "deployment_ids": key.deployment_ids,
        "rotated_from": key.rotated_from_id,
        "created_at": unix(key.created_at),
        "expires_at": unix(key.expires_at),
        "revoked_at": unix(key.revoked_at),
        "last_used_at": unix(key.last_used_at),
    }


def new_api_key_body(key: ApiKey, token: str) -> dict[str, Any]:
    """The only answer that ever holds the key itself."""
    return {**api_key_body(key), "key": token}


def member_body(member: Member) -> dict[str, Any]:
    return {"id": member.public_id, "object": "member", "email": member.user.username, "role": member.role}


def project_body(project: Project) -> dict[str, Any]:
    return {
        "id": project.pk,
        "object": "project",
        "name": project.name,
        "created_at": unix(project.created_at),
        "archived_at": unix(project.archived_at),
    }


class ApiKeyInput(BodyInput):
    name = serializers.CharField(max_length=120)
    scopes = serializers.ListField(
        child=Choice(choices=list(SCOPES)),
        min_length=1,
        max_length=len(SCOPES),
        allow_null=True,
        default=None,
    )
    project_id = serializers.CharField(max_length=40, allow_null=True, default=None)
    deployment_ids = serializers.ListField(
        child=serializers.CharField(max_length=40),
        min_length=1,
        max_length=MAX_RESTRICTIONS,
        allow_null=True,
        default=None,
    )
    expires_at = serializers.IntegerField(min_value=0, max_value=MAX_UNIX, allow_null=True, default=None)


class ApiKeyRotateInput(BodyInput):
    grace_seconds = serializers.IntegerField(
        min_value=0, max_value=int(MAX_GRACE.total_seconds()), default=int(DEFAULT_GRACE.total_seconds())
    )


class MemberInput(BodyInput):
    email = serializers.EmailField(max_length=150)
    role = Choice(choices=Member.Role.choices, default=Member.Role.MEMBER)


class MemberUpdateInput(BodyInput):
    role = Choice(choices=Member.Role.choices)


class ProjectInput(BodyInput):
    name = serializers.CharField(max_length=120)
