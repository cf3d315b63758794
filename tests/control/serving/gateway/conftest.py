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
from control.serving.deployments.supervisor import Supervisor, SupervisorTimings
from control.tenants.accounts.models import Organization
from tests.control.factories import make_key, make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    FAKE_ENGINE,
    REAL_ENGINE,
    State,
    children_of,
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
    supervisor.stop()
    for child in children_of(supervisor):
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


@pytest.fixture
def real_deployment(supervisor: Supervisor, caller: Organization, settings: Settings, tmp_path: Path) -> Deployment:
    """A ready deployment `fast` with a real engine, which runs a tiny model."""
    from tests.tiny_model import make_tiny_model  # imports torch, which other tests of the control plane do not need

    settings.SLIPSTREAM_ENGINE_COMMAND = REAL_ENGINE
    supervisor.timings = SupervisorTimings(probe_seconds=0.1, sample_seconds=0.1, settled_seconds=0.0)
    model = make_served_model(tmp_path / "model")
    make_tiny_model(tmp_path / "model", max_position_embeddings=32_768)
    deployment = make_deployment(model, caller, "fast")
    tick_until_state(supervisor, deployment, State.READY, seconds=120)
    return deployment


@pytest.fixture(params=["fake engine", pytest.param("real engine", marks=pytest.mark.wide)])
def each_deployment(request: pytest.FixtureRequest) -> Deployment:
    """A ready deployment `fast` with a fake engine. `make test-wide` repeats the test with a real engine."""
    is_real = request.param == "real engine"
    deployment: Deployment = request.getfixturevalue("real_deployment" if is_real else "deployment")
    return deployment


@contextmanager
def running_server() -> Iterator[str]:
    """Runs the application in a server in a thread, and shuts the server down in an orderly way at the end.

    Yields: the address of the API.

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
