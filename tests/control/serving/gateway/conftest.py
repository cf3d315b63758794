"""Runs the application under a real uvicorn, so that streams, disconnects and cancellations happen on real sockets."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from django.db import connection
from pytest_django import DjangoDbBlocker, Settings

from control.asgi import application
from control.core.settings.config import get_config
from control.serving.deployments.models import Deployment
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.factories import make_key, make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    FAKE_ENGINE,
    State,
    make_deployment,
    make_served_model,
    tick_until_state,
)


@pytest.fixture
def supervisor(transactional_db: None, settings: Settings, tmp_path: Path) -> Iterator[Supervisor]:
    settings.SLIPSTREAM_ENGINE_COMMAND = FAKE_ENGINE
    settings.SLIPSTREAM = get_config().model_copy(update={"data_dir": tmp_path / "data"})
    supervisor = Supervisor(settings.SLIPSTREAM, timings=TIMINGS)
    yield supervisor
    children = [watched.process for watched in supervisor._watched.values() if watched.process]
    supervisor.stop()
    for child in children:
        child.kill()
        child.wait(timeout=10)


@pytest.fixture
def caller(transactional_db: None) -> Organization:
    return make_organization()


@pytest.fixture
def token(caller: Organization) -> str:
    return make_key(caller)[1]


@pytest.fixture
def deployment(supervisor: Supervisor, caller: Organization, tmp_path: Path) -> Deployment:
    """A ready deployment `fast` with a fake engine whose model folder is `tmp_path / "model"`."""
    deployment = make_deployment(make_served_model(tmp_path / "model"), caller, "fast")
    tick_until_state(supervisor, deployment, State.READY)
    return deployment


@contextmanager
def running_server() -> Iterator[str]:
    """Runs the application in a thread, whose end is the orderly shutdown of a server. Yields the address of the API.

    The server's threads share the test's connection, in which the SQLite database lives.
    """
    connection.inc_thread_sharing()
    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, log_level="error", lifespan="on", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < deadline, "uvicorn did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        connection.dec_thread_sharing()


@pytest.fixture
def base_url(transactional_db: None, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Address of the API."""
    with running_server() as url:
        yield url
