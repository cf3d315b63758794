"""Promise S26 of docs/reliability.md: sign-in of members with a password and a second factor, and password resets."""

from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.conf import settings
from django.test import Client
from django.urls import reverse

from control.tenants.accounts.models import Member, User
from tests.control.factories import make_organization
from tests.control.operations.sign_in.support import (
    PASSWORD,
    Capture,
    code_of,
    is_signed_in,
    link_in,
    mails_after,
    make_member,
    new_factor,
    sign_in,
)

pytestmark = pytest.mark.django_db


def errors_in(response: Any) -> str:
    """The text of the errors that a form shows."""
    return str(response.context["form"].errors)


def test_a_member_signs_in_and_out() -> None:
    make_member(make_organization())

    client, response = sign_in("ANA@example.com")

    assert (response.status_code, response.headers["Location"]) == (302, reverse("admin:index"))
    assert is_signed_in(client)
    cookie = response.cookies[settings.SESSION_COOKIE_NAME]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
    assert client.get(reverse("account_logout")).status_code == 200
    assert is_signed_in(client), "a link on another page must not sign anybody out"
    assert client.post(reverse("admin:logout")).headers["Location"] == reverse("account_login")
    assert not is_signed_in(client)


def test_every_refused_sign_in_gets_the_same_response() -> None:
    """The response must not reveal whether an address has an account, belongs to staff, or was removed."""
    organization = make_organization()
    make_member(organization)
    make_member(organization, "removed@example.com")
    User.objects.create_superuser("operator", "operator@example.com", PASSWORD)
    make_member(organization, "inactive@example.com")
    Member.objects.filter(user__username="removed@example.com").delete()
    User.objects.filter(username="inactive@example.com").update(is_active=False)

    attempts = [("ana@example.com", "wrong password")]
    attempts += [(name, PASSWORD) for name in ("nobody@example.com", "operator", "removed@example.com")]
    attempts.append(("inactive@example.com", PASSWORD))
    refusals = set()
    for email, password in attempts:
        client, response = sign_in(email, password)
        assert not is_signed_in(client)
        refusals.add((response.status_code, errors_in(response)))

    assert len(refusals) == 1, refusals


def test_after_five_wrong_passwords_further_sign_ins_of_the_address_are_refused() -> None:
    make_member(make_organization())
    for _ in range(5):
        sign_in(password="wrong password")

    client, response = sign_in()

    assert not is_signed_in(client)
    assert "Too many" in errors_in(response)


def test_a_forged_form_does_not_sign_in() -> None:
    make_member(make_organization())
    client = Client(enforce_csrf_checks=True)

    for path in ("account_login", "account_reset_password", "account_logout", "choose-organization"):
        assert client.post(reverse(path), {"login": "ana@example.com", "password": PASSWORD}).status_code == 403


def test_nobody_creates_an_account_without_an_invitation() -> None:
    values = {"username": "eve", "email": "eve@example.com", "password1": PASSWORD, "password2": PASSWORD}

    assert "closed" in Client().post(reverse("account_signup"), values).content.decode().lower()
    assert not User.objects.exists()


def test_a_password_reset_sends_a_link_that_works_once_and_ends_other_sessions(
    django_capture_on_commit_callbacks: Capture,
) -> None:
    make_member(make_organization())
    other, _ = sign_in()
    client = Client()
    ask = lambda: client.post(reverse("account_reset_password"), {"email": "Ana@example.com"})  # noqa: E731
    (message,) = mails_after(django_capture_on_commit_callbacks, ask, num=1)
    link = link_in(message)

    form_path = client.get(link).headers["Location"]
    values = {"password1": "another long password", "password2": "another long password"}
    assert client.post(form_path, values).status_code == 302

    assert not is_signed_in(other)
    assert is_signed_in(sign_in(password="another long password")[0])
    assert not is_signed_in(sign_in()[0])
    second = Client().get(link)
    assert second.status_code == 200
    assert second.context["token_fail"]


def test_a_password_reset_has_the_same_response_for_every_address_and_mails_only_members(
    django_capture_on_commit_callbacks: Capture,
) -> None:
    make_member(make_organization())
    User.objects.create_superuser("operator@example.com", "operator@example.com", PASSWORD)
    answers = set()
    for email, num in (("ana@example.com", 1), ("nobody@example.com", 0), ("operator@example.com", 0)):
        responses: list[Any] = []
        ask = lambda address=email, into=responses: into.append(  # noqa: E731
            Client().post(reverse("account_reset_password"), {"email": address})
        )
        mails_after(django_capture_on_commit_callbacks, ask, num=num)
        answers.add((responses[0].status_code, responses[0].headers["Location"], responses[0].content))

    assert len(answers) == 1


def test_a_password_reset_link_names_the_configured_address_and_not_the_host_of_the_request(
    django_capture_on_commit_callbacks: Capture,
) -> None:
    make_member(make_organization())
    ask = lambda: Client(headers={"host": "127.0.0.1"}).post(  # noqa: E731
        reverse("account_reset_password"), {"email": "ana@example.com"}
    )

    (message,) = mails_after(django_capture_on_commit_callbacks, ask, num=1)

    assert "127.0.0.1" not in message.body
    assert link_in(message)


def test_with_a_second_factor_a_password_alone_does_not_sign_in() -> None:
    member = make_member(make_organization())
    client, _ = sign_in()
    secret = new_factor(client)
    stored = Authenticator.objects.get(user=member.user, type=Authenticator.Type.TOTP).data["secret"]
    assert secret not in stored, "the secret is stored encrypted"

    client, response = sign_in()
    assert response.headers["Location"] == reverse("mfa_authenticate")
    assert not is_signed_in(client)
    assert client.post(reverse("mfa_authenticate"), {"code": "000000"}).status_code == 200
    assert not is_signed_in(client)

    assert client.post(reverse("mfa_authenticate"), {"code": code_of(secret)}).status_code == 302
    assert is_signed_in(client)


def test_a_recovery_code_works_once_in_place_of_the_authenticator_app() -> None:
    member = make_member(make_organization())
    new_factor(sign_in()[0])
    code = (
        Authenticator.objects.get(user=member.user, type=Authenticator.Type.RECOVERY_CODES).wrap().get_unused_codes()[0]
    )

    for works in (True, False):
        client, _ = sign_in()
        client.post(reverse("mfa_authenticate"), {"code": code})
        assert is_signed_in(client) == works


def test_a_member_who_removes_a_required_second_factor_must_set_it_up_again() -> None:
    organization = make_organization()
    organization.requires_two_factor = True
    organization.save()
    make_member(organization)
    client, _ = sign_in()
    assert client.get(reverse("admin:index")).headers["Location"] == reverse("mfa_activate_totp")

    new_factor(client)
    assert is_signed_in(client)

    client.post(reverse("mfa_deactivate_totp"))
    assert client.get(reverse("admin:index")).headers["Location"] == reverse("mfa_activate_totp")


def test_the_sign_in_pages_load_nothing_from_other_origins_and_run_no_inline_script() -> None:
    make_member(make_organization())
    client, _ = sign_in()
    new_factor(client)
    pages = [Client().get(reverse(name)) for name in ("account_login", "account_reset_password")]
    pages += [client.get(reverse(name)) for name in ("mfa_index", "account_change_password", "mfa_view_recovery_codes")]
    for page in pages:
        assert page.status_code == 200
        assert "form-action 'self';" in page.headers["Content-Security-Policy"]
        assert "//" not in page.content.decode().replace("http://www.w3.org", "").replace("<!DOCTYPE html>", "")
