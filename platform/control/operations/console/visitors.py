"""Who uses the console: staff with Django's permissions, or a member of an organization with the rights of a role."""

from allauth.mfa.utils import is_mfa_enabled
from django.http import HttpRequest

from control.tenants.accounts.models import Member
from control.tenants.accounts.people import memberships
from control.tenants.accounts.scopes import ROLE_SCOPES, is_granted, scope_needed
from control.tenants.row_security.scope import set_request_tenant

ORGANIZATION_KEY = "slipstream_organization"  # session key for the organization that the user has chosen
_META = "SLIPSTREAM_MEMBER"


def member_of(request: HttpRequest) -> Member | None:
    """Returns the membership in whose name the request acts, or None if its user is staff or has no membership.

    The membership is read once per request, so a member who is removed loses access from the next request on.
    """
    if _META not in request.META:
        request.META[_META] = _find(request)
    member = request.META[_META]
    assert member is None or isinstance(member, Member)
    return member


def enter_organization(request: HttpRequest) -> None:
    """Limits the request of a member to the rows of the member's organization, which PostgreSQL enforces."""
    member = member_of(request)
    if member is not None:
        set_request_tenant(member.organization_id, None)


def lacks_second_factor(request: HttpRequest, member: Member) -> bool:
    """Returns whether the user must set up the second factor that the member's organization requires."""
    return bool(member.organization.requires_two_factor and not is_mfa_enabled(request.user))


def member_may(member: Member, scope: str, method: str) -> bool:
    """Returns whether the member's role has the right that an API key would need for this method.

    Args: scope: the scope of the page; empty if the page is for staff only.
    """
    return scope != "" and is_granted(scope_needed(scope, method), ROLE_SCOPES[member.role])


def staff_may(request: HttpRequest, permission: str) -> bool:
    """Returns whether the user is a member of staff with this Django permission."""
    return bool(request.user.is_staff and request.user.has_perm(permission))


def _find(request: HttpRequest) -> Member | None:
    by_organization = {member.organization_id: member for member in memberships(request.user)}
    chosen = by_organization.get(request.session.get(ORGANIZATION_KEY, ""))
    return chosen or next(iter(by_organization.values()), None)
