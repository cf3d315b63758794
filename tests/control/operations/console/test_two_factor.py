"""Sign-in with production settings, in a separate process, because those settings install other apps."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = """
import json, time
from urllib.parse import parse_qs, urlsplit
from base64 import b32decode
from io import StringIO
from django.conf import settings
from django.core.management import call_command
from django.test import Client
from django_otp.oath import totp
from control.tenants.accounts.models import User
from control.tenants.administration.services import member_add, organization_create
from control.tenants.row_security.scope import Across, across_tenants

settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # only because it is fast
call_command("migrate", verbosity=0)
PASSWORD, results = "correct horse battery", {}
user = User.objects.create_superuser("root", password=PASSWORD)

def sign_in(password, **values):
    client = Client()
    data = {"username": "root", "password": password, **values}
    return client, client.post("/admin/login/?next=/admin/", data, secure=True)

def overview_status(client):
    return client.get("/admin/", secure=True).status_code

def new_code():
    printed = StringIO()
    call_command("two_factor_enrol", "root", stdout=printed)
    secret = parse_qs(urlsplit(printed.getvalue().strip()).query)["secret"][0]
    return f"{totp(b32decode(secret)):06d}"

client, response = sign_in(PASSWORD)
results["without a device"] = [response.status_code, overview_status(client)]
results["asks for a code"] = 'name="otp_token"' in response.content.decode()
valid_code = new_code()
client, response = sign_in(PASSWORD)
results["password alone"] = [response.status_code, overview_status(client)]
client, response = sign_in(PASSWORD, otp_token="x")
results["wrong code"] = [response.status_code, overview_status(client)]
client = Client()
client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
results["session without a code"] = overview_status(client)
valid_code = new_code()
client, response = sign_in(PASSWORD, otp_token=valid_code)
results["both"] = [response.status_code, overview_status(client)]
client, response = sign_in(PASSWORD, otp_token=valid_code)
results["the same code again"] = [response.status_code, overview_status(client)]
for _ in range(5):
    sign_in("wrong")
client, response = sign_in(PASSWORD, otp_token=new_code())
results["locked out"] = [response.status_code, overview_status(client)]
call_command("axes_reset_username", "root", stdout=StringIO())
client, response = sign_in(PASSWORD, otp_token=new_code())
results["unlocked"] = [response.status_code, overview_status(client)]

organization = organization_create(name="Acme")
member_add(organization=organization, role="owner", user=User.objects.create_user("ana@example.com", password=PASSWORD))
for name, password in (("member with a wrong password", "wrong"), ("member", PASSWORD)):
    client = Client()
    response = client.post("/account/login/", {"login": "ana@example.com", "password": password}, secure=True)
    results[name] = [response.status_code, overview_status(client)]
cookie = response.cookies["sessionid"]
results["cookie of a member"] = [bool(cookie[flag]) for flag in ("secure", "httponly", "samesite")]
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The script's output: for each case, the status codes of the sign-in and of the console's overview."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLIPSTREAM_", "DJANGO_"))}
    process = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", SCRIPT],
        cwd=ROOT,
        env={
            **inherited,
            "DJANGO_SETTINGS_MODULE": "control.core.settings.production",
            "SLIPSTREAM_DATA_DIR": str(tmp_path_factory.mktemp("production")),
            "SLIPSTREAM_SECRET_KEY": "k" * 50,
            "SLIPSTREAM_ALLOWED_HOSTS": "testserver",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    observed: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
    return observed


def test_a_sign_in_with_password_and_code_opens_the_console(results: dict[str, object]) -> None:
    assert results["asks for a code"]
    assert results["both"] == [302, 200]


@pytest.mark.parametrize("case", ["without a device", "password alone", "wrong code", "the same code again"])
def test_a_sign_in_without_both_factors_is_refused(results: dict[str, object], case: str) -> None:
    assert results[case] == [200, 302]  # the sign-in page again, and a redirect from the overview to the sign-in page


def test_members_sign_in_with_allauth_and_without_the_code_that_staff_need(results: dict[str, object]) -> None:
    assert results["member with a wrong password"] == [200, 302]
    assert results["member"] == [302, 200]
    assert results["cookie of a member"] == [True, True, True]


def test_a_session_without_a_code_is_not_signed_in(results: dict[str, object]) -> None:
    assert results["session without a code"] == 302


def test_after_five_wrong_passwords_the_right_one_is_refused_until_an_operator_unlocks_the_user(
    results: dict[str, object],
) -> None:
    assert results["locked out"] == [429, 302]
    assert results["unlocked"] == [302, 200]
