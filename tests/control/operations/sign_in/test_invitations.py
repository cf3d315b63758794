"""Promise S26 of docs/reliability.md: the link of an invitation is valid for one use, one member and one week."""

import datetime as dt
import time
from typing import Any

import pytest
from django.core import signing
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from control.tenants.accounts.models import Member, Organization, User
from control.tenants.administration import invitations
from control.tenants.administration.services import member_invite, member_invite_again, member_remove
from tests.control.factories import make_organization
from tests.control.operations.console.support import operator_client
from tests.control.operations.sign_in.support import (
    PASSWORD,
    Capture,
    is_signed_in,
    link_in,
    mails_after,
    make_member,
    sign_in,
)

pytestmark = pytest.mark.django_db
CHOICE = {"new_password1": PASSWORD, "new_password2": PASSWORD}


@pytest.fixture
def capture(django_capture_on_commit_callbacks: Capture) -> Capture:
    return django_capture_on_commit_callbacks


def invite(capture: Capture, organization: Organization | None = None, email: str = "ana@example.com") -> str:
    """Returns the path of the link in the mail."""
    organization = organization or make_organization()
    act = lambda: member_invite(organization=organization, email=email, role=Member.Role.MEMBER)  # noqa: E731
    (message,) = mails_after(capture, act, num=1)
    assert message.to == [email]
    return link_in(message)


def test_a_member_invited_through_the_api_chooses_a_password_and_signs_in(client: Client, capture: Capture) -> None:
    responses: list[Any] = []
    post = lambda: responses.append(  # noqa: E731
        client.post("/v1/members", {"email": "Ana@example.com", "role": "read_only"}, "application/json")
    )
    link = link_in(mails_after(capture, post, num=1)[0])
    assert responses[0].json()["status"] == "invited"
    visitor = Client()
    assert "ana@example.com" in visitor.get(link).content.decode()

    response = visitor.post(link, CHOICE)

    assert (response.status_code, response.headers["Location"]) == (302, reverse("account_login"))
    assert not is_signed_in(visitor)
    signed_in, _ = sign_in()
    assert is_signed_in(signed_in)
    assert client.get(f"/v1/members/{responses[0].json()['id']}").json()["status"] == "active"


def test_the_api_sends_an_invitation_again_until_the_member_has_signed_in(
    client: Client, organization: Organization, capture: Capture
) -> None:
    first = invite(capture, organization)
    path = f"/v1/members/{Member.objects.get().public_id}/invitation"

    (message,) = mails_after(capture, lambda: client.post(path), num=1)

    assert Client().get(first).status_code == 410
    assert Client().post(link_in(message), CHOICE).status_code == 302
    sign_in()
    response = client.post(path)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "member_joined")


def test_an_invitation_link_works_once(capture: Capture) -> None:
    link = invite(capture)
    assert Client().post(link, CHOICE).status_code == 302

    assert Client().get(link).status_code == 410
    assert (
        Client().post(link, {"new_password1": "another password", "new_password2": "another password"}).status_code
        == 410
    )
    assert User.objects.get().check_password(PASSWORD)


def test_an_invitation_link_expires_after_a_week(capture: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    link, real = invite(capture), time.time
    week = dt.timedelta(days=7).total_seconds()

    monkeypatch.setattr(time, "time", lambda: real() + week - 60)
    assert Client().get(link).status_code == 200
    monkeypatch.setattr(time, "time", lambda: real() + week + 60)
    assert Client().post(link, CHOICE).status_code == 410


def test_a_new_invitation_and_the_members_removal_make_an_invitation_link_void(capture: Capture) -> None:
    first = invite(capture)
    member = Member.objects.get()

    (message,) = mails_after(capture, lambda: member_invite_again(member=member), num=1)

    second = link_in(message)
    assert (Client().get(first).status_code, Client().get(second).status_code) == (410, 200)
    make_member(member.organization, "owner@example.com")
    member_remove(member=member)
    assert Client().post(second, CHOICE).status_code == 410


@pytest.mark.parametrize(
    "token", ["x", "x:y:z", pytest.param(signing.dumps(["member_x", "y"], salt="other"), id="another-salt")]
)
def test_an_invented_invitation_link_is_refused(token: str) -> None:
    assert Client().get(reverse("invitation", args=[token])).status_code == 410


def test_a_weak_password_is_refused_and_the_link_stays_valid(capture: Capture) -> None:
    link = invite(capture)

    for weak in ("short", "password1234"):
        assert Client().post(link, {"new_password1": weak, "new_password2": weak}).status_code == 200
    assert not User.objects.get().has_usable_password()
    assert Client().post(link, CHOICE).status_code == 302


def test_a_user_with_a_password_gets_no_link_that_could_replace_it(capture: Capture) -> None:
    make_member(make_organization())
    act = lambda: member_invite(  # noqa: E731
        organization=make_organization(), email="ana@example.com", role=Member.Role.OWNER
    )

    (message,) = mails_after(capture, act, num=1)

    assert link_in(message) == reverse("account_login")
    token = invitations.invitation_token(Member.objects.latest("pk"))
    assert Client().get(reverse("invitation", args=[token])).status_code == 410


def test_an_invitation_form_needs_the_csrf_token(capture: Capture) -> None:
    link = invite(capture)

    assert Client(enforce_csrf_checks=True).post(link, CHOICE).status_code == 403
    assert not User.objects.get().has_usable_password()


def test_operators_invite_in_the_console_and_send_the_invitation_again(capture: Capture) -> None:
    organization, operator = make_organization(), operator_client()
    path = f"{reverse('admin:accounts_member_add')}?organization={organization.pk}"

    mails_after(capture, lambda: operator.post(path, {"email": "ana@example.com", "role": "owner"}), num=1)
    member = Member.objects.get()
    again = reverse("admin:accounts_member_invite_again", args=[member.pk])
    mails_after(capture, lambda: operator.post(again, {"_form_submitted": "True"}), num=1)

    User.objects.filter(pk=member.user_id).update(last_login=timezone.now())
    mails_after(capture, lambda: operator.post(again, {"_form_submitted": "True"}), num=0)
