"""Selectors for the people behind members, for code that does not know the organization yet."""

from django.contrib.auth.base_user import AbstractBaseUser
from django.contrib.auth.models import AnonymousUser

from control.tenants.accounts.models import Member, User
from control.tenants.row_security.scope import Across, across_tenants


def memberships(user: AbstractBaseUser | AnonymousUser) -> list[Member]:
    """Returns the user's memberships, the oldest first. Staff and users who are not active have none."""
    if not isinstance(user, User) or not user.is_active or user.is_staff:
        return []
    with across_tenants(Across.AUTHENTICATION):
        return list(Member.objects.filter(user=user).select_related("organization").order_by("pk"))


def is_member(user: AbstractBaseUser | AnonymousUser) -> bool:
    return bool(memberships(user))
