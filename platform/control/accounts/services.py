"""Writers of organizations and keys."""

import datetime as dt

from django.db import IntegrityError, transaction
from django.utils import timezone

from control.accounts.keys import new_token
from control.accounts.models import ApiKey, Member, Organization, User
from control.api.errors import ApiError


def organization_create(*, name: str) -> Organization:
    """Raises: ApiError: 409, the name is taken."""
    try:
        with transaction.atomic():
            return Organization.objects.create(name=name)
    except IntegrityError as error:
        raise ApiError(409, f"There is already an organization named {name!r}.", "name_taken", "name") from error


@transaction.atomic
def member_add(*, organization: Organization, user: User, role: Member.Role) -> Member:
    """Adds the user, or changes the role of one who is in already."""
    member, _ = Member.objects.update_or_create(organization=organization, user=user, defaults={"role": role})
    return member


def api_key_create(
    *, organization: Organization, name: str, expires_at: dt.datetime | None = None
) -> tuple[ApiKey, str]:
    """The key's row and its text. The text is shown once: only a hash of its secret is kept."""
    token = new_token()
    key = ApiKey.objects.create(
        id=token.id,
        organization=organization,
        name=name,
        secret_sha256=token.secret_sha256,
        last4=str(token)[-4:],
        expires_at=expires_at,
    )
    return key, str(token)


def api_key_revoke(*, key: ApiKey) -> ApiKey:
    """Ends the key for good, at once. The time of the first revocation stays."""
    ApiKey.objects.filter(pk=key.pk, revoked_at=None).update(revoked_at=timezone.now())
    key.refresh_from_db()
    return key


def api_key_touch(*, key: ApiKey, now: dt.datetime) -> None:
    """Notes that the key was used, at most once a minute: a write per request would make reads wait for writers."""
    minute_ago = now - dt.timedelta(minutes=1)
    if key.last_used_at is not None and key.last_used_at > minute_ago:
        return
    ApiKey.objects.filter(pk=key.pk).exclude(last_used_at__gt=minute_ago).update(last_used_at=now)
