"""Sign-in of members through an OpenID Connect provider (promise S26). A small server plays the provider."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from allauth.account.internal.flows.login import AUTHENTICATION_METHODS_SESSION_KEY
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from django.urls import reverse

from control.core.settings.config import Config
from control.core.settings.sign_in import mail_settings, oidc_settings
from control.tenants.accounts.models import Member, User
from tests.control.factories import make_organization
from tests.control.operations.sign_in.support import is_signed_in, make_member, new_factor, sign_in

pytestmark = pytest.mark.django_db
LOGIN = reverse("openid_connect_login", args=["sso"])
CALLBACK = reverse("openid_connect_callback", args=["sso"])


@dataclass
class Provider:
    """The responses of the fake provider. `claims` describes the person who signs in there."""

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    code_challenge: str = ""
    audience: str = "slipstream"
    token_requests: list[dict[str, list[str]]] = field(default_factory=list)

    def answer(self, path: str, form: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if path == "/.well-known/openid-configuration":
            names = ("authorization", "token", "userinfo")
            endpoints = {f"{name}_endpoint": f"{self.issuer}/{name}" for name in names}
            return 200, {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys", **endpoints}
        if path == "/userinfo":
            return 200, self.claims
        self.token_requests.append(form)
        digest = jwt.utils.base64url_encode(sha256(form["code_verifier"][0].encode()).digest()).decode()
        if digest != self.code_challenge or form["client_secret"] != ["the client's secret"]:
            return 400, {"error": "invalid_grant"}
        identity = {**self.claims, "iss": self.issuer, "aud": self.audience, "exp": 4_000_000_000, "iat": 0}
        token = jwt.encode(identity, "k" * 32, algorithm="HS256")
        return 200, {"access_token": "a", "token_type": "Bearer", "id_token": token}


@pytest.fixture
def provider(settings: Any) -> Iterator[Provider]:
    played = Provider()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
            status, body = played.answer(urlsplit(self.path).path, form)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        do_POST = do_GET  # noqa: N815  # the name that the base class looks up

        def log_message(self, *args: object) -> None:
            """Keeps the output of the tests short."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        played.issuer = f"http://127.0.0.1:{server.server_port}"
        values = {
            "oidc_issuer": played.issuer,
            "oidc_client_id": "slipstream",
            "oidc_client_secret": "the client's secret",
        }
        settings.SLIPSTREAM = Config.model_validate({**django_settings.SLIPSTREAM.model_dump(), **values})
        settings.SOCIALACCOUNT_PROVIDERS = oidc_settings(settings.SLIPSTREAM)
        yield played
        server.shutdown()


def come_back(
    provider: Provider, *, subject: str = "1", email: str = "ana@example.com", verified: Any = True
) -> Client:
    """Starts the sign-in, lets the provider confirm the person, and follows the redirect back."""
    client = Client()
    started = client.post(LOGIN)
    query = parse_qs(urlsplit(started.headers["Location"]).query)
    assert started.headers["Location"].startswith(f"{provider.issuer}/authorization?")
    provider.code_challenge = query["code_challenge"][0]
    provider.claims = {"sub": subject, "email": email, "email_verified": verified}
    client.get(CALLBACK, {"code": "c", "state": query["state"][0]})
    return client


def test_a_member_signs_in_through_the_provider(provider: Provider) -> None:
    make_member(make_organization())

    client = come_back(provider)

    assert is_signed_in(client)
    assert client.session[AUTHENTICATION_METHODS_SESSION_KEY][-1]["method"] == "socialaccount"


def test_an_invited_member_needs_no_password(provider: Provider) -> None:
    member = make_member(make_organization())
    member.user.set_unusable_password()
    member.user.save()

    assert is_signed_in(come_back(provider, email="ANA@example.com"))


@pytest.mark.parametrize("verified", [False, "false", None])
def test_an_address_that_the_provider_has_not_verified_opens_no_account(provider: Provider, verified: Any) -> None:
    make_member(make_organization())

    assert not is_signed_in(come_back(provider, verified=verified))


def test_strangers_staff_and_removed_members_are_refused(provider: Provider) -> None:
    make_member(make_organization())
    User.objects.create_superuser("operator@example.com", "operator@example.com")
    assert is_signed_in(come_back(provider))
    Member.objects.all().delete()

    for subject, email in (("2", "eve@example.com"), ("3", "operator@example.com"), ("1", "ana@example.com")):
        assert not is_signed_in(come_back(provider, subject=subject, email=email))
    assert set(User.objects.values_list("username", flat=True)) == {"ana@example.com", "operator@example.com"}


def test_another_person_with_the_same_address_does_not_get_the_account(provider: Provider) -> None:
    make_member(make_organization())
    assert is_signed_in(come_back(provider, subject="1"))

    assert not is_signed_in(come_back(provider, subject="2"))
    assert is_signed_in(come_back(provider, subject="1", email="new-name@example.com"))


def test_a_token_for_another_service_is_refused(provider: Provider) -> None:
    make_member(make_organization())
    provider.audience = "another service"

    assert not is_signed_in(come_back(provider))
    assert provider.token_requests, "the code must have been exchanged for a token"


def test_a_callback_that_this_browser_did_not_ask_for_is_refused(provider: Provider) -> None:
    make_member(make_organization())
    provider.claims = {"sub": "1", "email": "ana@example.com", "email_verified": True}
    client = Client()

    client.get(CALLBACK, {"code": "c", "state": "invented"})

    assert not is_signed_in(client)
    assert provider.token_requests == []


def test_a_second_factor_is_asked_for_even_after_a_sign_in_through_the_provider(provider: Provider) -> None:
    make_member(make_organization())
    new_factor(sign_in()[0])

    assert not is_signed_in(come_back(provider))


def test_the_sign_in_page_offers_the_provider_and_its_policy_lets_the_form_redirect_there(provider: Provider) -> None:
    page = Client().get(reverse("account_login"))

    assert "Sign in with single sign-on" in page.content.decode()
    assert f"form-action 'self' {provider.issuer};" in page.headers["Content-Security-Policy"]
    assert Client(enforce_csrf_checks=True).post(LOGIN).status_code == 403


def test_incomplete_provider_settings_and_an_unknown_mail_scheme_are_refused() -> None:
    with pytest.raises(ValueError, match="oidc_client_secret"):
        Config.model_validate({"oidc_issuer": "https://id.example.com", "oidc_client_id": "x"})
    unknown_scheme = Config.model_validate({"smtp_url": "http://localhost"})
    with pytest.raises(ImproperlyConfigured, match="SLIPSTREAM_SMTP_URL"):
        mail_settings(unknown_scheme)
