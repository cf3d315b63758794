import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connections
from pytest_django.plugin import DjangoDbBlocker

from control.settings.config import Config
from tests.control.factories import make_base_model, make_organization
from tests.workers.tasks.live import ROOT, LiveStack

LEASE_SECONDS, RENEW_SECONDS, RECONCILE_SECONDS = 2.0, 0.5, 0.5


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("migrated")
    environment = {**os.environ, "SLIPSTREAM_DATA_DIR": str(folder)}
    subprocess.run(
        [sys.executable, "manage.py", "migrate", "--verbosity", "0"], cwd=ROOT, env=environment, check=True, timeout=120
    )
    return folder / "slipstream.sqlite3"


@pytest.fixture
def stack(
    tmp_path: Path,
    migrated_database: Path,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LiveStack]:
    shutil.copy(migrated_database, tmp_path / "slipstream.sqlite3")
    monkeypatch.setattr(settings, "SLIPSTREAM", Config(data_dir=tmp_path, shard_rows=4))
    environment = {
        **os.environ,
        "SLIPSTREAM_DATA_DIR": str(tmp_path),
        "SLIPSTREAM_LEASE_SECONDS": str(LEASE_SECONDS),
        "SLIPSTREAM_RENEW_SECONDS": str(RENEW_SECONDS),
        "SLIPSTREAM_RECONCILE_SECONDS": str(RECONCILE_SECONDS),
        "SLIPSTREAM_SHARD_ROWS": "4",
        "SLIPSTREAM_BACKOFF_SECONDS": "0.1",
        "SLIPSTREAM_POLL_SECONDS": "0.1",
        "SLIPSTREAM_STALL_SECONDS": "5",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform"))),
    }
    in_memory = connections["default"]
    monkeypatch.setitem(connections.settings["default"], "NAME", str(tmp_path / "slipstream.sqlite3"))
    connections["default"] = connections.create_connection("default")
    with django_db_blocker.unblock():
        (tmp_path / "model").mkdir()
        base_model = make_base_model()
        base_model.path = str(tmp_path / "model")
        base_model.save()
        live = LiveStack(
            data_dir=tmp_path, base_model=base_model, organization=make_organization(), environment=environment
        )
        try:
            yield live
        finally:
            live.close()
            connections["default"].close()
            connections["default"] = in_memory
