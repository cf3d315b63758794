"""Selectors for organizations, members, projects and keys."""

from django.db.models import QuerySet
from django.utils import timezone

from control.core.api.errors import ApiError
from control.core.api.lookup import one_of
from control.tenants.accounts.keys import MalformedKey, parse_token
from control.tenants.accounts.models import ApiKey, Member, Organization, Project
from control.tenants.accounts.projects import visible
from control.tenants.accounts.services import api_key_touch
from control.tenants.row_security.scope import current_project


def api_key_authenticate(token: str) -> ApiKey:
    """Returns the key with its organization and the organization's limits, and records its use.

    Raises: ApiError: 401. Every cause has the same message, so that a caller learns nothing about existing keys.
    """
    message = "Incorrect API key provided. It is mistyped, revoked or expired."
    refused = ApiError(401, message, "invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
    try:
        parsed = parse_token(token)
    except MalformedKey:
        raise refused from None
    # The query filters by id and hash, so that an unknown id and a wrong secret take the same time. The comparison of
    # the hashes need not take constant time, because the position at which they differ says nothing about the secret.
    keys = ApiKey.objects.select_related("organization__limits", "project", "member")
    try:
        key = keys.get(pk=parsed.id, secret_sha256=parsed.secret_sha256)
    except ApiKey.DoesNotExist:
        raise refused from None
    if not is_valid(key):
        raise refused
    api_key_touch(key=key, now=timezone.now())
    return key


def is_valid(key: ApiKey) -> bool:
    """Returns whether the key may be used. A key is not valid if it is revoked or expired, if its project is archived,
    or if the deletion of its organization was requested."""
    is_expired = key.expires_at is not None and key.expires_at <= timezone.now()
    is_archived = key.project is not None and key.project.archived_at is not None
    is_leaving = key.organization.deletion_requested_at is not None
    return key.revoked_at is None and not is_expired and not is_archived and not is_leaving


def api_keys_list(organization: Organization) -> QuerySet[ApiKey]:
    return ApiKey.objects.filter(visible(organization)).select_related("member")


def api_key_get(organization: Organization, key_id: str) -> ApiKey:
    """Raises: ApiError: 404, also for another organization's key."""
    return one_of(api_keys_list(organization), key_id, kind="API key", param="key_id")


def members_list(organization: Organization) -> QuerySet[Member]:
    """Returns the organization's members. If the caller's key belongs to a project, it sees no members."""
    members = Member.objects.filter(organization=organization).select_related("user")
    return members if current_project() is None else members.none()


def member_get(organization: Organization, member_id: str) -> Member:
    """Raises: ApiError: 404, also for another organization's member."""
    return one_of(members_list(organization), member_id, kind="member", param="member_id", by="public_id")


def projects_list(organization: Organization) -> QuerySet[Project]:
    """Returns the organization's projects. If the caller's key belongs to a project, it sees only this project."""
    projects, own = Project.objects.filter(organization=organization), current_project()
    return projects if own is None else projects.filter(pk=own)


def project_get(organization: Organization, project_id: str) -> Project:
    """Raises: ApiError: 404, also for another organization's project."""
    return one_of(projects_list(organization), project_id, kind="project", param="project_id")
