"""Slow storage and hanging engines of one organization affect no endpoint of another organization."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from control.core.storage.backends import FolderStorage, get_storage
from control.serving.deployments import health
from control.serving.deployments.engine_tls import EngineAddress
from control.serving.deployments.health import UNUSED_FACTOR, UNUSED_SECONDS, Check, HealthWatch, Load
from control.serving.deployments.launchers.staging_pool import MAX_PER_ORGANIZATION, NUM_THREADS, StagingPool
from control.serving.deployments.models import Replica
from control.serving.deployments.supervisor import Supervisor
from tests.control.factories import make_organization
from tests.control.serving.deployments.conftest import TIMINGS
from tests.control.serving.deployments.support import (
    State,
    crashes_of,
    identity_of,
    make_deployment,
    make_model_folder,
    make_served_model,
    make_speculator,
    replica_of,
    tick_until,
    tick_until_state,
)

REPLICA = Replica(port=1)


class SlowStorage:
    """A storage whose downloads below `slow/` wait until `released` is set."""

    def __init__(self, storage: FolderStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self.released = threading.Event()
        self.num_started = 0

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._storage.sizes(prefix)

    def get_folder(self, prefix: str, target: Path) -> None:
        if prefix.startswith("slow/"):
            with self._lock:
                self.num_started += 1
            assert self.released.wait(30)
        self._storage.get_folder(prefix, target)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowStorage]:
    local = get_storage()
    assert isinstance(local, FolderStorage)
    slow = SlowStorage(local)
    monkeypatch.setattr("control.models.catalog.artifacts.get_storage", lambda: slow)
    yield slow
    slow.released.set()


@pytest.fixture
def probed_ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The port of every health check that has ended."""
    ports: list[int] = []
    real = health.probe

    def probe(client: httpx2.Client, address: EngineAddress, token: str) -> Check:
        check = real(client, address, token)
        ports.append(address.port)
        return check

    monkeypatch.setattr(health, "probe", probe)
    return ports


def make_slow_deployments(folder: Path, *, num: int, num_organizations: int) -> None:
    organizations = [make_organization() for _ in range(num_organizations)]
    for i in range(num):
        organization = organizations[i % num_organizations]
        model = make_served_model(folder / f"slow{i}", organization=organization)
        speculator = make_speculator(model, organization, name=f"slow{i}", storage_prefix=f"slow/{i}")
        make_deployment(model, organization, name=f"slow{i}", speculator=speculator)


@pytest.mark.parametrize("num_organizations", [1, NUM_THREADS])
def test_during_eight_slow_downloads_health_checks_go_on_and_no_healthy_endpoint_is_killed(
    supervisor: Supervisor, storage: SlowStorage, probed_ports: list[int], tmp_path: Path, num_organizations: int
) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"), name="healthy")
    tick_until_state(supervisor, deployment, State.READY)
    process = identity_of(deployment)
    supervisor.timings = replace(TIMINGS, hang_seconds=0.3)
    make_slow_deployments(tmp_path, num=NUM_THREADS, num_organizations=num_organizations)
    num_at_once = NUM_THREADS if num_organizations > 1 else MAX_PER_ORGANIZATION
    tick_until(supervisor, lambda: storage.num_started == num_at_once)

    probed_ports.clear()
    tick_until(
        supervisor, lambda: probed_ports.count(replica_of(deployment).port or 0) >= 30
    )  # for longer than `hang_seconds`

    assert identity_of(deployment) == process
    assert process.is_alive()
    assert (deployment.state, crashes_of(deployment)) == (State.READY, [])


def test_slow_downloads_of_one_organization_do_not_delay_the_endpoint_of_another(
    supervisor: Supervisor, storage: SlowStorage, tmp_path: Path
) -> None:
    make_slow_deployments(tmp_path, num=16, num_organizations=1)  # as many as an organization may have by default
    supervisor.tick()
    organization = make_organization()
    model = make_served_model(tmp_path / "model", organization=organization)
    get_storage().put_folder("quick/one", make_model_folder(tmp_path / "artifact"))
    speculator = make_speculator(model, organization, storage_prefix="quick/one")
    deployment = make_deployment(model, organization, name="other", speculator=speculator)

    tick_until_state(supervisor, deployment, State.READY)

    assert storage.num_started == MAX_PER_ORGANIZATION


def test_a_free_staging_thread_goes_to_the_organization_that_has_waited_longest() -> None:
    pool, release, order = StagingPool(), threading.Event(), list[str]()

    def copy(name: str) -> None:
        assert release.wait(10)
        order.append(name)

    blockers = [pool.submit(f"blocker{i}", lambda: copy("blocker")) for i in range(NUM_THREADS)]
    copies = [pool.submit("large", lambda: copy("large")) for _ in range(50)]
    copies.append(pool.submit("small", lambda: copy("small")))
    release.set()
    for future in [*blockers, *copies]:
        future.result(timeout=10)
    pool.shutdown()

    assert order.index("small") < NUM_THREADS + 3 * MAX_PER_ORGANIZATION


def test_a_cancelled_copy_is_not_made_and_the_error_of_a_copy_reaches_the_caller() -> None:
    pool, release = StagingPool(), threading.Event()

    def wait() -> None:
        assert release.wait(10)

    for _ in range(MAX_PER_ORGANIZATION):
        pool.submit("one", wait)
    cancelled = pool.submit("one", lambda: pytest.fail("was copied"))

    def fail() -> None:
        raise OSError("full")

    failed = pool.submit("one", fail)
    assert cancelled.cancel()
    release.set()

    assert isinstance(failed.exception(timeout=10), OSError)
    pool.shutdown()


def test_a_supervisor_uses_one_client_for_all_its_health_checks(
    supervisor: Supervisor, probed_ports: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    tick_until_state(supervisor, deployment, State.READY)
    monkeypatch.setattr("httpx2.Client.__init__", lambda *_, **__: pytest.fail("another client was created"))

    probed_ports.clear()
    tick_until(supervisor, lambda: len(probed_ports) >= 10)

    assert deployment.state == State.READY


@pytest.mark.parametrize(("idle_seconds", "num_checks"), [(0.0, 20), (UNUSED_SECONDS, 20 // UNUSED_FACTOR)])
def test_an_engine_that_is_not_used_is_checked_less_often(
    monkeypatch: pytest.MonkeyPatch, idle_seconds: float, num_checks: int
) -> None:
    now, load = [0.0], Load(num_open=0, idle_seconds=idle_seconds, is_asleep=False)
    monkeypatch.setattr("control.serving.deployments.health.time.monotonic", lambda: now[0])
    monkeypatch.setattr(health, "probe", lambda *_: Check(now[0], now[0], True, load))
    watch, results = HealthWatch(interval_seconds=1.0), []
    with ThreadPoolExecutor(1) as pool, health.engine_client() as client:
        for _ in range(20):
            for _ in range(2):  # starts a check if one is due, and takes its result
                results.append(watch.poll(pool, client, REPLICA))
                pool.submit(lambda: None).result()
            now[0] += 1.0

    assert results.count(True) == num_checks


def test_time_that_a_check_waits_for_a_thread_does_not_count_as_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hanging engines may occupy all threads of the health checks for a long time. A healthy engine must not be killed
    because its check waits for a thread."""
    now = [0.0]
    monkeypatch.setattr("control.serving.deployments.health.time.monotonic", lambda: now[0])
    monkeypatch.setattr(health, "probe", lambda *_: Check(started=now[0], ended=now[0] + 5.0, is_healthy=False))
    watch = HealthWatch(interval_seconds=1.0)
    with ThreadPoolExecutor(1) as pool, health.engine_client() as client:
        busy = threading.Event()
        pool.submit(busy.wait)
        watch.poll(pool, client, REPLICA)
        now[0] = 1000.0
        assert watch.poll(pool, client, REPLICA) is None
        busy.set()
        while watch.poll(pool, client, REPLICA) is None:
            pass

    assert (watch.failures, watch.unhealthy_seconds) == (1, 5.0)


def test_health_checks_create_no_clients(
    supervisor: Supervisor, tmp_path: Path, probed_ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating a client takes 18 ms of processor time, and every endpoint is checked once per second."""
    created: list[httpx2.Client] = []
    create = httpx2.Client.__init__

    def create_counted(client: httpx2.Client, *args: Any, **options: Any) -> None:
        created.append(client)
        create(client, *args, **options)

    monkeypatch.setattr(httpx2.Client, "__init__", create_counted)
    tick_until_state(supervisor, make_deployment(make_served_model(tmp_path / "model")), State.READY)

    tick_until(supervisor, lambda: len(probed_ports) >= 5)

    assert created == []
