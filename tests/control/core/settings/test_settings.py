"""Settings come from the environment and are validated. The settings modules configure keys, checks and logs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from pydantic import ValidationError

from control.core.settings.config import Config, database_settings

ROOT = Path(__file__).resolve().parents[4]


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLIPSTREAM_", "DJANGO_"))}
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_settings_are_read_from_the_environment_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SLIPSTREAM_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SLIPSTREAM_SHARD_ROWS", "64")
    monkeypatch.setenv("SLIPSTREAM_REDIS_URL", "")

    config = Config()

    assert (config.storage_dir, config.shard_rows, config.redis_url) == (tmp_path / "storage", 64, None)


@pytest.mark.parametrize("name", ["SLIPSTREAM_NODE_CACHE", "SLIPSTREAM_MAX_MODEL_COPIES_BYTES"])
def test_the_limit_for_copies_of_models_can_also_be_set_by_its_name_in_earlier_releases(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "5000")

    assert Config().node_cache == 5000


@pytest.mark.parametrize(
    "values",
    [{"shard_rows": 0}, {"shard_rows": 257}, {"lease_seconds": 15, "renew_seconds": 10}, {"max_upload_bytes": 0}],
)
def test_invalid_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Config(**values)


def test_a_database_url_is_converted_to_djangos_settings() -> None:
    url = "postgresql://us%40er:p%2Fw@db.example:6543/slip?sslmode=require"

    settings = database_settings(Config.model_validate({"database_url": url}))

    assert {key: settings[key] for key in ("NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")} == {
        "NAME": "slip",
        "USER": "us@er",
        "PASSWORD": "p/w",
        "HOST": "db.example",
        "PORT": "6543",
        "OPTIONS": {"sslmode": "require", "connect_timeout": "5"},
    }


@pytest.mark.parametrize("url", ["mysql://host/name", "postgresql://host", "sqlite:///x"])
def test_an_unsupported_database_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="must be postgresql://"):
        database_settings(Config.model_validate({"database_url": url}))


def test_every_change_of_a_model_has_a_migration(tmp_path: Path) -> None:
    process = manage("makemigrations", "--check", "--dry-run", SLIPSTREAM_DATA_DIR=str(tmp_path))

    assert process.returncode == 0, process.stdout + process.stderr


def test_production_passes_djangos_own_deployment_check(tmp_path: Path) -> None:
    process = manage(
        "check",
        "--deploy",
        "--fail-level",
        "WARNING",
        DJANGO_SETTINGS_MODULE="control.core.settings.production",
        SLIPSTREAM_DATA_DIR=str(tmp_path),
        SLIPSTREAM_SECRET_KEY="k" * 30 + "0123456789" * 3,
        SLIPSTREAM_ALLOWED_HOSTS="api.example",
    )

    assert process.returncode == 0, process.stderr


def test_production_does_not_start_without_a_secret_key(tmp_path: Path) -> None:
    process = manage(
        "check", DJANGO_SETTINGS_MODULE="control.core.settings.production", SLIPSTREAM_DATA_DIR=str(tmp_path)
    )

    assert process.returncode != 0
    assert "SLIPSTREAM_SECRET_KEY must be set" in process.stderr


def test_the_embedded_secret_key_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    script = "import json\nfrom django.conf import settings\nprint(json.dumps(settings.SECRET_KEY))"

    keys = [
        json.loads(manage("shell", "--no-imports", "-c", script, SLIPSTREAM_DATA_DIR=str(tmp_path)).stdout)
        for _ in range(2)
    ]

    assert keys[0] == keys[1]
    assert len(keys[0]) > 50
    assert (tmp_path / "secret_key").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["secret_key"]


@pytest.mark.parametrize("settings", ["embedded", "production"])
def test_all_log_lines_go_to_standard_error_in_the_same_format(tmp_path: Path, settings: str) -> None:
    script = (
        "import logging, structlog\n"
        "structlog.get_logger('control.queue.jobs').warning('own', job_id='job_1')\n"
        "logging.getLogger('a.library').warning('foreign')"
    )

    process = manage(
        *("shell", "--no-imports", "-c", script),
        DJANGO_SETTINGS_MODULE=f"control.core.settings.{settings}",
        SLIPSTREAM_DATA_DIR=str(tmp_path),
        SLIPSTREAM_SECRET_KEY="secret",
    )

    own_line, library_line = process.stderr.splitlines()
    if settings == "production":
        assert (json.loads(own_line)["event"], json.loads(own_line)["job_id"]) == ("own", "job_1")
        assert json.loads(library_line)["event"] == "foreign"
    else:
        assert "[warning  ] own" in own_line
        assert "[warning  ] foreign" in library_line
    assert process.stdout == ""
