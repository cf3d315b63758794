"""Executes validated requests for API keys, and declares the console's forms for members."""

import datetime as dt

from django.utils import timezone

from control.core.api.errors import ApiError
from control.core.api.forms import ConsoleForm
from control.tenants.accounts.models import ApiKey, Member
from control.tenants.accounts.scopes import INFERENCE, ROLE_SCOPES, scopes_within
from control.tenants.accounts.selectors import member_get, project_get
from control.tenants.administration.schemas import ApiKeyInput, MemberInput, MemberUpdateInput
from control.tenants.administration.services import (
    api_key_create,
    member_change,
    member_invite,
    refuse_wider_scopes,
)
from control.tenants.administration.signals import key_restricting
from control.tenants.row_security.scope import as_tenant


def create_from(caller: ApiKey, body: ApiKeyInput) -> tuple[ApiKey, str]:
    """Creates an API key. If `scopes` is missing, a key that is restricted to deployments gets `inference`. Any other
    key gets those scopes of the caller's key that the new key's member may have. If `member_id` or `project_id` is
    missing, the new key has the member or project of the caller's key.

    Raises: ApiError: 403, the caller's key or the member's role lacks a scope; 404, no such project or member, or no
        such deployment in the project; 400, `expires_at` is in the past; and the errors of `api_key_create`.
    """
    organization = caller.organization
    project = caller.project if body.project_id is None else project_get(organization, body.project_id)
    member = caller.member if body.member_id is None else member_get(organization, body.member_id)
    scopes = body.scopes or ([INFERENCE] if body.deployment_ids else _default_scopes(caller, member))
    if body.scopes or not body.deployment_ids:
        refuse_wider_scopes(granting=caller, scopes=scopes)
    # The signal's receivers look up the deployments, and must find only those that the key's project sees.
    with as_tenant(organization.pk, None if project is None else project.pk):
        key_restricting.send(ApiKey, organization=organization, deployment_ids=body.deployment_ids or ())
    return api_key_create(
        organization=organization,
        name=body.name,
        expires_at=_future(body.expires_at),
        scopes=scopes,
        project=project,
        member=member,
        deployment_ids=body.deployment_ids,
    )


def _default_scopes(caller: ApiKey, member: Member | None) -> list[str]:
    if member is None:
        return caller.granted_scopes
    scopes = scopes_within(caller.granted_scopes, ROLE_SCOPES[member.role])
    if not scopes:
        message = f"This key has none of the scopes of the role {member.role!r}, so it cannot grant them."
        raise ApiError(403, message, "insufficient_scope", "scopes")
    return scopes


def _future(moment: int | None) -> dt.datetime | None:
    if moment is None:
        return None
    expires_at = dt.datetime.fromtimestamp(moment, tz=dt.UTC)
    if expires_at <= timezone.now():
        raise ApiError(400, "expires_at must lie in the future.", "invalid_value", "expires_at")
    return expires_at


INVITE_MEMBER = ConsoleForm(
    title="Invite a member",
    request=MemberInput,
    run=lambda organization, body: member_invite(
        organization=organization, email=body.email, role=Member.Role(body.role)
    ),
)
CHANGE_ROLE = ConsoleForm(
    title="Change role",
    request=MemberUpdateInput,
    run=lambda row, body: member_change(member=row, role=Member.Role(body.role)),
    initial=lambda row: {"role": row.role},
)
