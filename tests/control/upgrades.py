"""Helpers for tests that migrate a database of an earlier release."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

from tests.source_tree import ROOT

SECRET_KEY = "the secret key of upgrades"


def migrate(data_dir: Path, *target: str) -> None:
    """Migrates the SQLite database of a data folder, for example to `"captures", "0003_..."`."""
    environment = {**os.environ, "SLIPSTREAM_DATA_DIR": str(data_dir), "SLIPSTREAM_DATABASE_URL": ""}
    environment["SLIPSTREAM_SECRET_KEY"] = SECRET_KEY
    environment["DJANGO_SETTINGS_MODULE"] = "control.core.settings.embedded"
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0", *target]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)


def add_row(database: sqlite3.Connection, table: str, **values: object) -> None:
    """Adds a row. A required column that has neither a value nor a default gets a placeholder of its type."""
    row = {
        name: 0 if kind.startswith(("integer", "smallint", "bool")) else "2026-11-23 00:00:00"
        for _, name, kind, not_null, default, _ in database.execute(f"PRAGMA table_info({table})")
        if not_null and default is None
    } | values
    names, marks = ", ".join(row), ", ".join("?" * len(row))
    database.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", [*row.values()])
