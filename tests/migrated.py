"""Provides migrated, empty databases. Each test that needs such a database gets a copy.

All migrations together take ten seconds or more. Therefore they run once for each state of the code, and the result is
kept in pytest's cache folder, which all processes and all runs of the tests share.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.postgres import OWNER, PostgresServer

ROOT = Path(__file__).parents[1]
POSTGRES_DATABASE = "slipstream_template"
_FOLDER = ROOT / ".pytest_cache" / "migrated"
_KEPT_SECONDS = 24 * 3600


@cache
def sqlite_file() -> Path:
    """Returns a SQLite database. The caller must not open the file itself, but a copy of it."""
    return _kept("slipstream.sqlite3", _make_sqlite)


@cache
def postgres_data() -> Path:
    """Returns the data folder of a stopped server with the database POSTGRES_DATABASE and the roles of `postgres`."""
    return _kept("postgres", _make_postgres)


def migrate(**environment: str) -> None:
    """Runs `manage.py migrate` with these environment variables, as an operator does."""
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, check=True, timeout=300)


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """Returns the file or folder of this name for the present state of the code.

    If it does not exist, `make` writes it to a temporary path, which is then renamed. Before that, folders of other
    states are deleted if they are older than a day. Younger ones may be used by tests that are still running.
    """
    folder = _FOLDER / _state()
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            for other in _FOLDER.iterdir():
                if other.is_dir() and other.stat().st_mtime < time.time() - _KEPT_SECONDS:
                    shutil.rmtree(other)
            folder.mkdir(exist_ok=True)
            partial = folder / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.rename(folder / name)
    return folder / name


def _state() -> str:
    """Returns a hash of everything that migrations depend on: the control plane's code and the installed packages."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted([*ROOT.glob("requirements*.txt"), *(ROOT / "platform").rglob("*.py")]):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)} {len(content)} ".encode() + content)
    return digest.hexdigest()[:16]


def _make_sqlite(path: Path) -> None:
    with TemporaryDirectory() as folder:
        migrate(SLIPSTREAM_DATA_DIR=folder, SLIPSTREAM_DATABASE_URL="")
        shutil.copy(Path(folder) / "slipstream.sqlite3", path)


def _make_postgres(path: Path) -> None:
    server = PostgresServer()
    server.create_database(POSTGRES_DATABASE)
    migrate(SLIPSTREAM_DATABASE_URL=server.url(POSTGRES_DATABASE, OWNER))
    server.stop()
    shutil.copytree(server.data, path)
