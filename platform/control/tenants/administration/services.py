"""Services that write organizations, members, projects and API keys."""

import datetime as dt
from collections.abc import Sequence

from django.db import IntegrityError, transaction
from django.utils import timezone

from control.core.api.errors import ApiError
from control.tenants.accounts.keys import new_token
from control.tenants.accounts.models import ApiKey, Member, Organization, Project, User
from control.tenants.accounts.scopes import INFERENCE, ROLE_SCOPES, full_access, is_granted
from control.tenants.administration.invitations import invitation_send
from control.tenants.audit.record import audited

_RESTRICTABLE = frozenset({INFERENCE, "deployments:read", "deployments:write", "deployments:*"})


@audited("organization.create")
def organization_create(*, name: str) -> Organization:
    """Raises: ApiError: 409, the name is taken."""
    try:
        with transaction.atomic():
            return Organization.objects.create(name=name)
    except IntegrityError as error:
        raise ApiError(409, f"There is already an organization named {name!r}.", "name_taken", "name") from error


@audited("organization.two_factor")
def organization_two_factor_set(*, organization: Organization, required: bool) -> Organization:
    """Sets whether members need a second factor. At their next request, members without one are asked to set one up."""
    Organization.objects.filter(pk=organization.pk).update(requires_two_factor=required)
    organization.refresh_from_db()
    return organization


@audited("member.add")
@transaction.atomic
def member_add(*, organization: Organization, user: User, role: Member.Role) -> Member:
    """Adds the user, or changes the role of an existing member."""
    member, _ = Member.objects.update_or_create(organization=organization, user=user, defaults={"role": role})
    return member


@audited("member.invite")
@transaction.atomic
def member_invite(*, organization: Organization, email: str, role: Member.Role) -> Member:
    """Adds a member by e-mail address and sends an invitation. A new user gets an account without a password, which the
    user sets through the link in the mail.

    Raises: ApiError: 409, the user is a member already.
    """
    user, is_new = User.objects.get_or_create(username=email.lower(), defaults={"email": email.lower()})
    if is_new:
        user.set_unusable_password()
        user.save(update_fields=["password"])
    member, is_added = Member.objects.get_or_create(organization=organization, user=user, defaults={"role": role})
    if not is_added:
        raise ApiError(409, f"{email!r} is a member already.", "member_exists", "email")
    invitation_send(member)
    return member


@audited("member.invite_again")
@transaction.atomic
def member_invite_again(*, member: Member) -> Member:
    """Sends a new invitation. The link of the earlier one no longer works.

    Raises: ApiError: 409, the member has signed in already.
    """
    if member.has_joined:
        raise ApiError(409, f"{member.user} has signed in already.", "member_joined", "member_id")
    if not member.user.has_usable_password():
        member.user.set_unusable_password()  # draws another random value, which makes earlier links void
        member.user.save(update_fields=["password"])
    invitation_send(member)
    return member


@audited("member.change")
@transaction.atomic
def member_change(*, member: Member, role: Member.Role) -> Member:
    """Changes the role, which limits the member's API keys from the next request on.

    Raises: ApiError: 409, the change would leave the organization without an owner.
    """
    if role != Member.Role.OWNER:
        _refuse_last_owner(member)
    Member.objects.filter(pk=member.pk).update(role=role)
    member.refresh_from_db()
    return member


@audited("member.remove")
@transaction.atomic
def member_remove(*, member: Member) -> None:
    """Removes a member and the member's API keys. The user's account stays. Raises: as `member_change`."""
    _refuse_last_owner(member)
    Member.objects.filter(pk=member.pk).delete()


def _refuse_last_owner(member: Member) -> None:
    """Refuses a change that concerns the organization's only owner. Raises: ApiError: 409.

    Call this in the transaction of the change: the lock prevents the last two owners from leaving at once.
    """
    Organization.objects.select_for_update().get(pk=member.organization_id)
    owners = Member.objects.filter(organization=member.organization_id, role=Member.Role.OWNER)
    if owners.filter(pk=member.pk).exists() and not owners.exclude(pk=member.pk).exists():
        raise ApiError(409, "An organization must have at least one owner.", "last_owner", "member_id")


@audited("project.create")
def project_create(*, organization: Organization, name: str) -> Project:
    """Raises: ApiError: 409, the name is taken."""
    try:
        with transaction.atomic():
            return Project.objects.create(organization=organization, name=name)
    except IntegrityError as error:
        raise _project_name_taken(name) from error


@audited("project.rename")
def project_rename(*, project: Project, name: str) -> Project:
    """Raises: ApiError: 409, the name is taken."""
    try:
        with transaction.atomic():
            Project.objects.filter(pk=project.pk).update(name=name)
    except IntegrityError as error:
        raise _project_name_taken(name) from error
    project.refresh_from_db()
    return project


def _project_name_taken(name: str) -> ApiError:
    return ApiError(409, f"There is already a project named {name!r}.", "name_taken", "name")


@audited("project.archive")
def project_archive(*, project: Project) -> Project:
    """Archives the project: its keys are refused from now on, its usage stays. A repeated call changes nothing."""
    Project.objects.filter(pk=project.pk, archived_at=None).update(archived_at=timezone.now())
    project.refresh_from_db()
    return project


@audited("api_key.create")
def api_key_create(
    *,
    organization: Organization,
    name: str,
    expires_at: dt.datetime | None = None,
    scopes: Sequence[str] | None = None,
    project: Project | None = None,
    member: Member | None = None,
    deployment_ids: Sequence[str] | None = None,
    rotated_from: ApiKey | None = None,
) -> tuple[ApiKey, str]:
    """Returns the key's row and its text. The text is shown once: only a hash of its secret is stored.

    Args:
        scopes: None means only inference if the key is restricted to deployments. Otherwise None means all scopes of
            the member's role or, without a member, all scopes.
        member: the member whose role limits the key. The key is removed with the member. None: a key of the
            organization.
        deployment_ids: the organization's deployments that the key may use; None means all.
    Raises: ApiError: 400: a restricted key has a scope that is not about deployments; 403: the member's
        role lacks a scope; 409: the project is archived.
    """
    all_scopes = full_access() if member is None else list(ROLE_SCOPES[member.role])
    scopes = scopes or ([INFERENCE] if deployment_ids is not None else all_scopes)
    if missing := [scope for scope in scopes if not is_granted(scope, all_scopes)]:
        assert member is not None, "full access includes every scope"
        message = f"The role {member.role!r} does not have the scope {missing[0]!r}."
        raise ApiError(403, message, "insufficient_scope", "scopes")
    if deployment_ids is not None and not _RESTRICTABLE.issuperset(scopes):
        message = f"a key restricted to deployments can only have the scopes {sorted(_RESTRICTABLE)}"
        raise ApiError(400, message, "invalid_value", "scopes")
    if project is not None and project.archived_at is not None:
        raise ApiError(409, f"Project {project.pk} is archived.", "project_archived", "project_id")
    token = new_token()
    key = ApiKey.objects.create(
        id=token.id,
        organization=organization,
        name=name,
        secret_sha256=token.secret_sha256,
        last4=str(token)[-4:],
        expires_at=expires_at,
        scopes=list(scopes),
        project=project,
        member=member,
        deployment_ids=None if deployment_ids is None else list(deployment_ids),
        rotated_from=rotated_from,
    )
    return key, str(token)


@audited("api_key.rotate")
@transaction.atomic
def api_key_rotate(*, key: ApiKey, grace: dt.timedelta) -> tuple[ApiKey, str]:
    """Creates a key with the same rights. The old key expires after `grace`, or at its own expiry if that is earlier.

    Raises: ApiError: 409, the key is revoked or has expired.
    """
    now = timezone.now()
    locked = ApiKey.objects.select_for_update().select_related("organization").get(pk=key.pk)
    if locked.revoked_at is not None or (locked.expires_at is not None and locked.expires_at <= now):
        raise ApiError(409, f"Key {key.pk} has ended; create a new one.", "key_ended", "key_id")
    created = api_key_create(
        organization=locked.organization,
        name=locked.name,
        expires_at=locked.expires_at,
        scopes=_scopes_left(locked),
        project=locked.project,
        member=locked.member,
        deployment_ids=locked.deployment_ids,
        rotated_from=locked,
    )
    end = now + grace if locked.expires_at is None else min(now + grace, locked.expires_at)
    ApiKey.objects.filter(pk=key.pk).update(expires_at=end)
    return created


def _scopes_left(key: ApiKey) -> list[str]:
    """Returns the scopes that a rotated key keeps. Raises: ApiError: 403, the member's role no longer has any of the
    key's scopes."""
    if not key.granted_scopes:
        raise ApiError(403, "The role of this key's member has none of the key's scopes.", "insufficient_scope")
    return key.granted_scopes


def refuse_wider_scopes(*, granting: ApiKey, scopes: Sequence[str]) -> None:
    """A key can grant only scopes that it has itself. Raises: ApiError: 403."""
    if missing := [scope for scope in scopes if not is_granted(scope, granting.granted_scopes)]:
        message = f"This key does not have the scope {missing[0]!r} itself, so it cannot grant it."
        raise ApiError(403, message, "insufficient_scope", "scopes")


@audited("api_key.revoke")
def api_key_revoke(*, key: ApiKey) -> ApiKey:
    """Revokes the key permanently. A repeated call changes nothing."""
    ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())
    key.refresh_from_db()
    return key
