"""Promise S10 of docs/reliability.md: bandit finds no severe issue, and production responses have security headers."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.source_tree import ROOT

FOLDERS = ("engine", "kernels", "platform", "sdk", "workers", "manage.py")
# Requests a path with and without TLS. No database is needed: the request without TLS is redirected, and the request
# with TLS is refused because it has no API key.
SCRIPT = """
import json
from django.test import Client
secure, plain = (Client(headers={"host": "api.example"}).get("/v1/models", secure=secure) for secure in (True, False))
print(json.dumps([secure.status_code, dict(secure.items()), plain.status_code, plain["Location"]]))
"""


def test_bandit_finds_no_issue_of_high_severity() -> None:
    command = [sys.executable, "-m", "bandit", "--quiet", "--recursive", "-lll", "--format", "json", *FOLDERS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)

    assert report["errors"] == []
    assert report["results"] == []
    assert report["metrics"]["_totals"]["loc"] > 10_000, "bandit must check all files"


def test_production_responses_have_security_headers_and_use_tls(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLIPSTREAM_", "DJANGO_"))},
        "DJANGO_SETTINGS_MODULE": "control.core.settings.production",
        "SLIPSTREAM_DATA_DIR": str(tmp_path),
        "SLIPSTREAM_SECRET_KEY": "k" * 30 + "0123456789" * 3,
        "SLIPSTREAM_ALLOWED_HOSTS": "api.example",
    }
    command = [sys.executable, "manage.py", "shell", "--no-imports", "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)

    status, headers, plain_status, location = json.loads(done.stdout)
    assert status == 401
    assert headers["Strict-Transport-Security"] == "max-age=31536000; includeSubDomains; preload"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert (plain_status, location) == (301, "https://api.example/v1/models"), "requests without TLS are redirected"
