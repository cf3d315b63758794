"""Invitations of members. A new user gets a link that is valid for a week and can be used once, to set a password.

Until then, the user's password field holds a random value that is not a usable password. The link contains a digest of
this value. When the user sets a password, or the invitation is sent again, the value changes, and earlier links are
void. Removing the member makes the links void, too.
"""

import datetime as dt
import hashlib

from django.contrib.auth.password_validation import validate_password
from django.core import signing
from django.core.mail import EmailMessage
from django.db import transaction

from control.core.mail import send_later
from control.core.settings.config import get_config
from control.tenants.accounts.models import Member, User
from control.tenants.row_security.scope import Across, across_tenants

MAX_AGE = dt.timedelta(days=7)
_SALT = "slipstream.invitation"


class InvitationVoid(Exception):
    """The link is malformed, too old, used, replaced by a later one, or its member has been removed."""


def invitation_send(member: Member) -> None:
    """Sends the mail when the transaction is committed. Users who have a password are asked to sign in with it."""
    user, url = member.user, get_config().public_url
    if user.has_usable_password():
        steps = f"Sign in with your password:\n\n{url}/account/login/\n"
    else:
        steps = (
            f"Choose a password within {MAX_AGE.days} days. This link can be used once:\n\n"
            f"{url}/account/invitation/{invitation_token(member)}\n"
        )
    text = f"You are now a member of {member.organization.name} in Slipstream.\n\n{steps}"
    send_later(EmailMessage(f"Invitation to {member.organization.name}", text, to=[user.email or user.username]))


def invitation_token(member: Member) -> str:
    return signing.dumps([member.public_id, _state(member.user)], salt=_SALT)


def invited_member(token: str) -> Member:
    """Raises: InvitationVoid."""
    try:
        public_id, state = signing.loads(token, salt=_SALT, max_age=MAX_AGE)
    except signing.BadSignature as error:
        raise InvitationVoid from error
    with across_tenants(Across.AUTHENTICATION):
        members = Member.objects.select_related("user", "organization")
        member = members.filter(public_id=public_id, user__is_active=True, user__is_staff=False).first()
    if member is None or member.user.has_usable_password() or _state(member.user) != state:
        raise InvitationVoid
    return member


def invitation_accept(*, token: str, password: str) -> User:
    """Sets the first password. Raises: InvitationVoid; django.core.exceptions.ValidationError: a weak password."""
    with transaction.atomic():
        user = User.objects.select_for_update().get(pk=invited_member(token).user_id)
        user = invited_member(token).user  # again, because another request may have used the link in the meantime
        validate_password(password, user)
        user.set_password(password)
        user.save(update_fields=["password"])
    return user


def _state(user: User) -> str:
    return hashlib.sha256(user.password.encode()).hexdigest()
