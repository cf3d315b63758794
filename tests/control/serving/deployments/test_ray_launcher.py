"""Tests the launcher `ray` with a fake of Ray's calls. tests/workers/supervisor tests it with a real cluster."""

import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection
from django.test.utils import CaptureQueriesContext

from control.core.settings.config import get_config
from control.models.adapters.models import Adapter
from control.serving.deployments import leases, observations
from control.serving.deployments.launchers import ray_calls, ray_cluster
from control.serving.deployments.launchers.engine_process import _command
from control.serving.deployments.launchers.interface import Ended, LaunchError
from control.serving.deployments.launchers.processes import ACTOR_NAME_VARIABLE, NAME_VARIABLE
from control.serving.deployments.launchers.ray_calls import ActorGone, ClusterUnavailable, Needs
from control.serving.deployments.launchers.ray_cluster import RayLauncher, needs_of
from control.serving.deployments.launchers.ray_order import order_of, ordered
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_stop
from control.serving.deployments.supervisor import Supervisor
from tests.control.serving.deployments.support import (
    make_deployment,
    make_replica,
    make_served_model,
    make_speculator,
    replica_of,
)

pytestmark = pytest.mark.django_db
STARTED = {
    "host": "10.0.0.7", "device": "", "pid": 70, "port": 7000, "token": "t", "operator_token": "o", "certificate": "",
}  # fmt: skip


def done(value: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


class FakeActor:
    def __init__(self, number: int) -> None:
        self.id = f"actor-{number}"
        self.calls: list[str] = []
        self.results: dict[str, Future[Any]] = {"placed": done(True), "started": done(STARTED), "ended": Future()}

    def call(self, method: str) -> "Future[Any]":
        self.calls.append(method)
        return self.results.get(method, done(None))


class FakeCluster:
    """Gives a name to one actor at a time, as Ray does. While `is_slow` is set, `kill` has no effect."""

    def __init__(self) -> None:
        self.living: dict[str, FakeActor] = {}
        self.num_created = 0
        self.is_slow = False

    def create(self, name: str, order: str, needs: Needs) -> "Future[Any]":
        if name not in self.living:
            self.num_created += 1
            self.living[name] = FakeActor(self.num_created)
        return done(self.living[name])

    def find(self, name: str) -> "Future[Any]":
        return done(self.living.get(name))

    def kill(self, name: str, actor_id: str) -> "Future[None]":
        if name in self.living and self.living[name].id == actor_id and not self.is_slow:
            del self.living[name]
        return done(None)

    def actors(self) -> "Future[dict[str, str]]":
        return done({name: actor.id for name, actor in self.living.items()})

    def release_sigterm(self) -> None:
        """Does nothing, because this fake handles no signals."""

    def close(self) -> None:
        """Nothing to close."""


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    deployment = make_deployment(make_served_model(tmp_path / "model"))
    make_replica(deployment, state=Replica.State.PROVISIONING, host="")
    return deployment


def launcher_of(cluster: FakeCluster, supervisor: str = "one") -> RayLauncher:
    return RayLauncher(get_config(), supervisor=supervisor, cluster=cluster)  # type: ignore[arg-type]


def record_in(replica: Replica) -> Any:
    return lambda **process: observations.replica_launched(replica=replica, launcher="ray", **process)


def launch(launcher: RayLauncher, deployment: Deployment) -> Replica:
    """Starts and records the engine of the first replica."""
    replica = replica_of(deployment)
    assert [launcher.ensure(replica, record_in(replica)) for _ in range(2)] == [False, True]
    return replica


def test_a_recorded_engine_is_found_by_the_name_and_the_id_of_its_actor(
    cluster: FakeCluster, deployment: Deployment
) -> None:
    launch(launcher_of(cluster), deployment)
    replica, successor = replica_of(deployment), launcher_of(cluster, "two")

    assert cluster.living.keys() == {f"{deployment.pk}-0-1"}
    assert (replica.host, replica.supervised_host, replica.node) == ("10.0.0.7", "10.0.0.7", "ray:10.0.0.7")
    assert replica.process_started == cluster.living[f"{deployment.pk}-0-1"].id
    assert successor.observe(replica) is None
    cluster.living[f"{deployment.pk}-0-1"] = FakeActor(99)  # another engine of the same replica
    assert launcher_of(cluster, "three").observe(replica) == Ended(
        "engine_exited", "The engine ended while no supervisor was running."
    )


def test_an_actor_that_no_row_records_is_adopted_and_not_started_again(
    cluster: FakeCluster, deployment: Deployment
) -> None:
    killed = launcher_of(cluster)
    replica = replica_of(deployment)
    assert not killed.ensure(replica, record_in(replica))  # and then its supervisor is killed
    successor = launcher_of(cluster, "two")
    successor.kill_strays()
    successor.retain([])

    launch(successor, deployment)

    assert cluster.num_created == 1
    assert replica_of(deployment).process_started == "actor-1"


def test_a_supervisor_that_has_lost_its_lease_neither_starts_nor_kills_an_engine(
    cluster: FakeCluster, deployment: Deployment
) -> None:
    late, late_replica = launcher_of(cluster), replica_of(deployment)
    Replica.objects.update(fence=1, supervisor="two")
    launch(launcher_of(cluster, "two"), deployment)

    assert not late.ensure(late_replica, record_in(late_replica))
    assert not late.ensure(late_replica, record_in(late_replica))
    late.retain([])

    assert (cluster.num_created, len(cluster.living)) == (1, 1)


def test_an_engine_that_was_ended_for_hanging_is_not_adopted_while_its_actor_lives(
    cluster: FakeCluster, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "RETRY_SECONDS", 0.0)
    launcher = launcher_of(cluster)
    hanging = launch(launcher, deployment)
    cluster.is_slow = True
    launcher.delete(hanging)
    observations.replica_crashed(replica=hanging, code="engine_hung", message="")
    replica = replica_of(deployment)

    assert not any(launcher.ensure(replica, record_in(replica)) for _ in range(4))
    cluster.is_slow = False
    assert any(launcher.ensure(replica, record_in(replica)) for _ in range(4))
    assert replica_of(deployment).process_started == "actor-2"


def test_an_engine_has_ended_if_its_actor_is_lost_but_not_if_the_cluster_does_not_answer(
    cluster: FakeCluster, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "RETRY_SECONDS", 0.0)
    launcher = launcher_of(cluster)
    replica = launch(launcher, deployment)
    actor = cluster.living[f"{replica}-1"]

    actor.results["ended"] = done(ClusterUnavailable())
    assert [launcher.observe(replica) for _ in range(3)] == [None] * 3
    actor.results["ended"] = done(ActorGone())
    launcher.observe(replica)
    ended = launcher.observe(replica)

    assert ended is not None
    assert ended.code == "node_lost"


def test_the_end_of_an_engine_is_reported_with_its_log_and_frees_the_name(
    cluster: FakeCluster, deployment: Deployment
) -> None:
    launcher = launcher_of(cluster)
    replica = launch(launcher, deployment)
    launcher.drain(replica)
    assert [launcher.observe(replica) for _ in range(2)] == [None] * 2
    actor = cluster.living[f"{replica}-1"]
    assert actor.calls.count("drain") == 1

    actor.results["ended"].set_result({"exit_code": 3, "log": "out of luck"})

    assert launcher.observe(replica) == Ended("engine_exited", "The engine ended with code 3.")
    assert launcher.logs(replica) == "out of luck"
    assert cluster.living == {}


def test_a_stray_engine_is_killed_unless_another_supervisor_may_be_about_to_record_it(
    cluster: FakeCluster, deployment: Deployment, tmp_path: Path
) -> None:
    launcher = launcher_of(cluster)
    launch(launcher, deployment)
    cluster.create(f"{deployment.pk}-0-0", "", Needs(0))  # an older generation
    cluster.create("of-another-installation-0-1", "", Needs(0))
    stopped = make_deployment(make_served_model(tmp_path / "other"), name="other")
    held = make_replica(stopped, state=Replica.State.PROVISIONING)
    deployment_stop(deployment=stopped)
    cluster.create(f"{stopped.pk}-0-1", "", Needs(0))
    leases.replicas_claim(
        Deployment.objects.filter(pk=stopped.pk), supervisor="two", node="n", launchers=["process", "ray"]
    )

    def survivors() -> set[str]:
        launcher.kill_strays()
        launcher.retain([])
        return set(cluster.living)

    spared = {f"{deployment.pk}-0-1", "of-another-installation-0-1"}
    assert survivors() == {*spared, f"{stopped.pk}-0-1"}
    leases.replicas_release(Replica.objects.filter(pk=held.pk))
    assert survivors() == spared


def test_an_engine_for_which_the_cluster_has_no_machine_gets_an_error_and_its_actor_is_killed(
    cluster: FakeCluster, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, replica = launcher_of(cluster), replica_of(deployment)
    launcher.ensure(replica, record_in(replica))
    cluster.living[f"{replica}-1"].results = {"placed": Future(), "started": Future()}
    assert not launcher.ensure(replica, record_in(replica))
    monkeypatch.setattr(ray_cluster, "PLACEMENT_SECONDS", -1.0)

    with pytest.raises(LaunchError) as error:
        launcher.ensure(replica, record_in(replica))

    assert error.value.code == "no_free_device"
    assert cluster.living == {}


def test_an_order_contains_all_that_the_engines_command_needs(deployment: Deployment) -> None:
    owner, model = deployment.organization, deployment.base_model
    adapter = Adapter.objects.create(
        organization=owner, base_model=model, name="law", rank=8, target_modules=[], size_bytes=1, storage_prefix="a"
    )
    deployment.adapters.add(adapter)
    deployment.speculator = make_speculator(model, owner)
    deployment.engine = {"weights": "int8", "max_context": 512}
    deployment.save()
    replica = replica_of(deployment)
    order = order_of(replica, uses_tls=True)
    arguments: dict[str, Any] = {"device": "", "host": "10.0.0.7", "port": 1, "speculator_dir": Path("/speculator")}

    with CaptureQueriesContext(connection) as queries:
        copy = ordered(order)
        command = _command(get_config(), copy.deployment, **arguments)

    assert len(queries) == 0
    assert command == _command(get_config(), replica.deployment, **arguments)
    assert {"--adapter", "--drafter", "int8", "10.0.0.7"} <= set(command)
    assert (str(copy), copy.deployment.generation) == (str(replica), 1)
    assert copy.deployment.organization_id == owner.pk
    assert copy.deployment.speculator is not None
    assert copy.deployment.speculator.artifact_prefix == deployment.speculator.artifact_prefix


@pytest.mark.parametrize(
    ("device", "weights", "num_gpus"),
    [("cpu", "auto", 0), ("cuda", "auto", 1), ("auto", "auto", None), ("cuda", "int4", 0), ("auto", "fp8", 1)],
)
def test_an_engine_gets_a_gpu_if_its_plan_allows_one(
    deployment: Deployment, device: str, weights: str, num_gpus: int | None
) -> None:
    deployment.engine = {"weights": weights}
    config = get_config().model_copy(update={"device": device, "endpoint_memory_bytes": 7})

    assert needs_of(config, deployment) == Needs(num_gpus, 7)


def test_a_supervisor_claims_no_engine_of_a_launcher_that_it_does_not_have(
    cluster: FakeCluster, deployment: Deployment
) -> None:
    launch(launcher_of(cluster), deployment)

    def claim(*launchers: str) -> int:
        return leases.replicas_claim(Deployment.objects.all(), supervisor="s", node="n", launchers=launchers)

    assert [claim("process"), claim("process", "ray")] == [0, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="the processes of a machine are listed in /proc")
def test_a_supervisor_does_not_kill_an_actors_engine_on_its_own_machine(
    supervisor: Supervisor, deployment: Deployment
) -> None:
    """The supervisor's launcher `process` kills engines that no row of its own names."""
    engines = {
        variable: subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(60)"],
            env={variable: f"{deployment.pk}-0-1"},
            start_new_session=True,
        )
        for variable in (NAME_VARIABLE, ACTOR_NAME_VARIABLE)
    }
    supervisor.kill_strays()

    assert engines[NAME_VARIABLE].wait(timeout=10) == -signal.SIGKILL
    assert engines[ACTOR_NAME_VARIABLE].poll() is None
    engines[ACTOR_NAME_VARIABLE].kill()
    engines[ACTOR_NAME_VARIABLE].wait(timeout=10)


def test_without_the_package_ray_only_a_supervisor_with_the_launcher_ray_refuses_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_calls, "find_spec", lambda _: None)
    Supervisor(get_config()).stop()
    with pytest.raises(ImproperlyConfigured, match=r"SLIPSTREAM_LAUNCHER=ray needs .*requirements-ray.txt"):
        Supervisor(get_config().model_copy(update={"launcher": "ray"}))
