"""Adapters that django-allauth calls to decide who may sign in, to send mails, and to encrypt secrets."""

from typing import Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.mfa.adapter import DefaultMFAAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from allauth.socialaccount.models import SocialAccount
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from control.core.mail import send_later
from control.core.secret_text import SecretText
from control.core.settings.config import get_config
from control.tenants.accounts.models import User
from control.tenants.accounts.people import is_member

TOTP_SECRETS = SecretText(b"slipstream second factors")


class AccountAdapter(DefaultAccountAdapter):  # type: ignore[misc]  # allauth has no types
    def is_open_for_signup(self, request: HttpRequest) -> bool:
        """Only invitations create accounts."""
        return False

    def authenticate(self, request: HttpRequest, **credentials: Any) -> User | None:
        """Refuses users who are not members. The response is the same as for a wrong password."""
        user = super().authenticate(request, **credentials)
        return user if user is not None and is_member(user) else None

    def send_mail(self, template_prefix: str, email: str, context: dict[str, Any]) -> None:
        send_later(self.render_mail(template_prefix, email, context))

    def get_reset_password_from_key_url(self, key: str) -> str:
        """The link in a mail begins with the configured address, not with the host that the request names."""
        url: str = super().get_reset_password_from_key_url(key)
        return get_config().public_url + url[url.index("/account/") :]


class ProviderAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]  # allauth has no types
    def is_open_for_signup(self, request: HttpRequest, sociallogin: Any) -> bool:
        return False

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        """Finds the member by the address that the provider has verified, and stores the provider's id of the user.

        Later sign-ins compare only this id. A person who later gets the member's address therefore cannot sign in as
        the member.
        """
        if not sociallogin.is_existing:
            verified = [address.email.lower() for address in sociallogin.email_addresses if address.verified is True]
            user = User.objects.filter(username__in=verified, is_active=True).first()
            if user is None or not is_member(user) or SocialAccount.objects.filter(user=user).exists():
                raise _refused(request)
            sociallogin.connect(request, user)
        elif not is_member(sociallogin.user):
            raise _refused(request)


class SecondFactorAdapter(DefaultMFAAdapter):  # type: ignore[misc]  # allauth has no types
    def encrypt(self, text: str) -> str:
        return TOTP_SECRETS.encrypt(text)

    def decrypt(self, encrypted_text: str) -> str:
        return TOTP_SECRETS.decrypt(encrypted_text)


def _refused(request: HttpRequest) -> ImmediateHttpResponse:
    messages.error(request, "This account is not a member of any organization. Ask an owner for an invitation.")
    response: HttpResponse = redirect("account_login")
    return ImmediateHttpResponse(response)
