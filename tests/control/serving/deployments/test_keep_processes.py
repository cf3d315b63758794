"""An upgrade keeps the endpoints of an existing data folder: their processes get replicas (migration 0012)."""

import sqlite3
from pathlib import Path

import pytest

from tests.control.upgrades import add_row, migrate


@pytest.mark.wide
def test_an_upgrade_gives_each_running_process_a_replica(tmp_path: Path) -> None:
    migrate(tmp_path, "deployments", "0010_devices")
    (path,) = tmp_path.glob("*.sqlite3")
    with sqlite3.connect(path) as database:
        add_row(database, "accounts_organization", id="1")
        add_row(database, "catalog_basemodel", id="1", organization_id=None)
        add_deployment(database, "dep_runs", state="ready", pid=4321, port=8123, token="t", device="1")
        add_deployment(database, "dep_drains", state="stopping", pid=4322, port=8124, token="u", device="")
        add_deployment(database, "dep_ended", state="stopped", pid=None, port=None, token="", device="")
    database.close()

    migrate(tmp_path, "deployments", "0012_keep_processes")

    columns = "deployment_id, number, state, generation, pid, process_started, port, token, device"
    with sqlite3.connect(path) as database:
        rows = database.execute(f"SELECT {columns} FROM deployments_replica ORDER BY pid").fetchall()
    database.close()
    assert rows == [
        ("dep_runs", 0, "ready", 3, 4321, "99", 8123, "t", "1"),
        ("dep_drains", 0, "draining", 3, 4322, "99", 8124, "u", ""),
    ]


def add_deployment(database: sqlite3.Connection, identity: str, **values: object) -> None:
    """Adds a row as the previous release wrote it."""
    references = {"organization_id": "1", "base_model_id": "1"}
    facts = {"id": identity, "name": identity, "crashes": "[]", "process_started": "99"}
    add_row(database, "deployments_deployment", **references, **facts, generation=3, observed_generation=3, **values)
