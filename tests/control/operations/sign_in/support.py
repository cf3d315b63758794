"""Helpers that create members, sign them in with a password, and read the mails that they receive."""

import re
import time
from base64 import b32decode
from collections.abc import Callable
from typing import Any

from django.core import mail
from django.test import Client
from django.urls import reverse
from django_otp.oath import totp

from control.tenants.accounts.models import Member, Organization, User

PASSWORD = "correct horse battery"
Capture = Callable[..., Any]  # pytest-django's django_capture_on_commit_callbacks


def make_member(organization: Organization, email: str = "ana@example.com", role: str = "owner") -> Member:
    user = User.objects.create_user(email, email, PASSWORD)
    return Member.objects.create(organization=organization, user=user, role=role)


def sign_in(email: str = "ana@example.com", password: str = PASSWORD) -> tuple[Client, Any]:
    client = Client()
    return client, client.post(reverse("account_login"), {"login": email, "password": password})


def is_signed_in(client: Client) -> bool:
    return client.get(reverse("admin:index")).status_code == 200


def mails_after(capture: Capture, act: Callable[[], Any], *, num: int) -> list[Any]:
    """Calls `act`, commits, and returns the `num` mails that another thread then sends within ten seconds."""
    mail.outbox.clear()
    with capture(execute=True) as committed:
        act()
    deadline = time.monotonic() + 10
    while len(mail.outbox) < len(committed) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(mail.outbox) == num
    return list(mail.outbox)


def link_in(message: Any) -> str:
    found = re.search(r"http://localhost:8000(/account/\S+)", message.body)
    assert found is not None, message.body
    return found[1]


def code_of(secret: str) -> str:
    """Returns the current code of an authenticator app with this secret."""
    return f"{totp(b32decode(secret)):06d}"


def new_factor(client: Client) -> str:
    """Sets up an authenticator app for the signed-in user, who enters the password again. Returns: the app's secret."""
    assert client.post(reverse("account_reauthenticate"), {"password": PASSWORD}).status_code == 302
    response = client.get(reverse("mfa_activate_totp"))
    assert response.status_code == 200, response.headers
    secret: str = client.session["mfa.totp.secret"]
    assert client.post(reverse("mfa_activate_totp"), {"code": code_of(secret)}).status_code == 302
    return secret
