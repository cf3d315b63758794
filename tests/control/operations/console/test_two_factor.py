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
from control.tenants.row_security.scope import Across, across_tenants

settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # only because it is fast
call_command("migrate", verbosity=0)
PASSWORD, seen = "correct horse battery", {}
user = User.objects.create_superuser("root", password=PASSWORD)

def sign_in(password, **values):
    client = Client()
    data = {"username": "root", "password": password, **values}
    return client, client.post("/admin/login/?next=/admin/", data, secure=True)

def index(client):
    return client.get("/admin/", secure=True).status_code

def code():
    printed = StringIO()
    call_command("two_factor_enrol", "root", stdout=printed)
    secret = parse_qs(urlsplit(printed.getvalue().strip()).query)["secret"][0]
    return f"{totp(b32decode(secret)):06d}"

client, answer = sign_in(PASSWORD)
seen["without a device"] = [answer.status_code, index(client)]
seen["asks for a code"] = 'name="otp_token"' in answer.content.decode()
right = code()
client, answer = sign_in(PASSWORD)
seen["password alone"] = [answer.status_code, index(client)]
client, answer = sign_in(PASSWORD, otp_token="x")
seen["wrong code"] = [answer.status_code, index(client)]
client = Client()
client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
seen["session without a code"] = index(client)
right = code()
client, answer = sign_in(PASSWORD, otp_token=right)
seen["both"] = [answer.status_code, index(client)]
client, answer = sign_in(PASSWORD, otp_token=right)
seen["the same code again"] = [answer.status_code, index(client)]
for _ in range(5):
    sign_in("wrong")
client, answer = sign_in(PASSWORD, otp_token=code())
seen["locked out"] = [answer.status_code, index(client)]
call_command("axes_reset_username", "root", stdout=StringIO())
client, answer = sign_in(PASSWORD, otp_token=code())
seen["unlocked"] = [answer.status_code, index(client)]
print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The script's output: for each case, the status codes of the sign-in and of the console's overview."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLIPSTREAM_", "DJANGO_"))}
    done = subprocess.run(
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
    assert done.returncode == 0, done.stderr
    observed: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return observed


def test_a_sign_in_with_password_and_code_opens_the_console(seen: dict[str, object]) -> None:
    assert seen["asks for a code"]
    assert seen["both"] == [302, 200]


@pytest.mark.parametrize("case", ["without a device", "password alone", "wrong code", "the same code again"])
def test_a_sign_in_without_both_factors_is_refused(seen: dict[str, object], case: str) -> None:
    assert seen[case] == [200, 302]  # the form is shown again, and the overview redirects to it


def test_a_session_without_a_code_is_not_signed_in(seen: dict[str, object]) -> None:
    assert seen["session without a code"] == 302


def test_after_five_wrong_passwords_the_right_one_is_refused_until_an_operator_unlocks_the_user(
    seen: dict[str, object],
) -> None:
    assert seen["locked out"] == [429, 302]
    assert seen["unlocked"] == [302, 200]
