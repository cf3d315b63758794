"""Real supervisors start engines on a real Ray cluster of this machine: a head and two machines with other addresses.

The two machines have data folders of their own and know nothing of the database. The engines are fake ones.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from control.serving.deployments.engine_tls import EngineAddress, EngineTransport
from control.serving.deployments.launchers.processes import ACTOR_NAME_VARIABLE, endpoint_processes
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_create, deployment_scale, deployment_stop
from tests.control.factories import make_key
from tests.workers.supervisor import test_deployment_supervisors as one_machine
from tests.workers.supervisor.live import LiveStack, kill_9
from tests.workers.supervisor.test_deployment_supervisors import holds_nothing, start_supervisor

processes_of_replicas = partial(one_machine.processes_of_replicas, ACTOR_NAME_VARIABLE)
all_ready_and_as_recorded = partial(one_machine.all_ready_and_as_recorded, ACTOR_NAME_VARIABLE)
HOSTS = ("127.0.0.2", "127.0.0.3")  # addresses of this machine, which stand for two other machines
SECONDS = 90.0  # far more than needed, because the machine may be busy
RAY_TOKEN = secrets.token_hex(16)
FAST_HEALTH_CHECKS = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}

pytestmark = [
    pytest.mark.wide,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the packages of requirements-ray.txt"),
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all addresses of 127.0.0.0/8"),
    pytest.mark.filterwarnings("ignore"),  # Ray itself causes warnings
]


class Machines:
    """A Ray cluster whose machines are raylets of this machine."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": FAST_HEALTH_CHECKS}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self._nodes: dict[str, Any] = {}
        for host in HOSTS:
            self.start(host)

    def start(self, host: str) -> None:
        environment = {
            "DJANGO_SETTINGS_MODULE": "tests.workers.supervisor.engine_settings",
            "SLIPSTREAM_DATA_DIR": str(self._folder / host),
        }
        self._nodes[host] = self._cluster.add_node(node_ip_address=host, num_cpus=2, env_vars=environment)

    @contextmanager
    def holding_engines(self) -> Iterator[Callable[[], list[int]]]:
        """Actors that Ray places within this context start their engines only after its end (engine_settings.py).

        Yields: a function that returns the process ids of the waiting actors.
        """
        folders = [self._folder / host / "held-engines" for host in HOSTS]
        for folder in folders:
            folder.mkdir()
        try:
            yield lambda: [int(file.name) for folder in folders for file in folder.iterdir()]
        finally:
            for folder in folders:
                shutil.rmtree(folder)

    def actor_processes(self) -> set[int]:
        """Returns the ids of the processes of this cluster's actors.

        Another test may use a cluster of its own at the same time.
        """
        found = set()
        ours = f"SLIPSTREAM_DATA_DIR={self._folder}/".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                is_actor = folder.joinpath("cmdline").read_bytes().startswith(b"ray::EngineActor")
                if is_actor and ours in folder.joinpath("environ").read_bytes():
                    found.add(int(folder.name))
            except OSError:
                continue  # the process has ended
        return found

    def kill_raylet(self, host: str) -> None:
        self._cluster.remove_node(self._nodes.pop(host), allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_AUTH_MODE", "token")
        environment.setenv("RAY_AUTH_TOKEN", RAY_TOKEN)
        machines = Machines(tmp_path_factory.mktemp("machines"))
        yield machines
        machines.close()


@pytest.fixture
def ray_stack(stack: LiveStack, machines: Machines) -> Iterator[LiveStack]:
    """A stack whose supervisors start engines on the cluster, in a namespace of their own."""
    stack.environment |= {
        "SLIPSTREAM_LAUNCHER": "ray",
        "SLIPSTREAM_RAY_ADDRESS": machines.address,
        "SLIPSTREAM_RAY_NAMESPACE": f"test-{secrets.token_hex(4)}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": RAY_TOKEN,
    }
    yield stack
    stack.close()
    for sessions in processes_of_replicas().values():
        for session in sessions:
            os.kill(parent_of(session), signal.SIGKILL)


def parent_of(pid: int) -> int:
    """Returns the parent of an engine with this process id: the process of the engine's Ray actor."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def make_deployment(stack: LiveStack, *, num_replicas: int) -> Deployment:
    deployment = deployment_create(organization=stack.organization, name="endpoint", base_model=stack.base_model)
    deployment_scale(deployment=deployment, num_replicas=num_replicas)
    return deployment


def chat(url: str, token: str, model: str, *, certificate: str = "") -> httpx2.Response:
    """Args: certificate: that of the engine, if the engine uses TLS."""
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    headers, extensions = {"Authorization": f"Bearer {token}"}, EngineAddress("", 0, certificate).extensions
    with httpx2.Client(transport=EngineTransport(), trust_env=False) as client:
        return client.post(f"{url}/chat/completions", json=body, headers=headers, extensions=extensions)


def test_a_deployment_on_a_ray_cluster_serves_through_the_gateway(ray_stack: LiveStack) -> None:
    deployment = make_deployment(ray_stack, num_replicas=2)
    start_supervisor(ray_stack)
    ray_stack.wait_until(all_ready_and_as_recorded, SECONDS)
    replicas = list(Replica.objects.order_by("host"))

    assert [(row.launcher, row.node, row.host) for row in replicas] == [("ray", f"ray:{h}", h) for h in HOSTS]
    with ray_stack.serve() as url:
        token = make_key(ray_stack.organization)[1]
        answer = chat(f"{url}/v1", token, deployment.name)
    assert answer.status_code == 200, answer.text
    address, token = replicas[0].supervised_address.url("/v1"), replicas[0].token
    certificate, other = (row.certificate for row in replicas)
    assert chat(address, token, deployment.name, certificate=certificate).status_code == 200
    assert chat(address, "another token", deployment.name, certificate=certificate).status_code == 401
    on_loopback = EngineAddress("127.0.0.1", replicas[0].port or 0, certificate).url("/v1")
    for url, trusted in ((address, other), (address, ""), (on_loopback, certificate)):
        with pytest.raises(httpx2.ConnectError):
            chat(url, token, deployment.name, certificate=trusted)
    with pytest.raises(httpx2.RemoteProtocolError):
        chat(address.replace("https", "http"), token, deployment.name)
    environments = [Path(f"/proc/{pid}/environ").read_bytes() for pid in endpoint_processes(ACTOR_NAME_VARIABLE)]
    assert len(environments) >= 2
    assert not any(RAY_TOKEN.encode() in environment for environment in environments)

    deployment_stop(deployment=deployment)
    ray_stack.wait_until(lambda: not processes_of_replicas(), SECONDS)
    ray_stack.wait_until(lambda: not Replica.objects.exclude(pid=None).exists(), SECONDS)


def kill_and_wait(stack: LiveStack, number: int, kill: Callable[[int], object]) -> None:
    """Kills the engine of a replica in some way, and waits until only this engine and its certificate are new."""
    engines, certificates = engines_by_number(), certificates_by_number()
    kill(engines[number])
    stack.wait_until(lambda: engines_by_number().get(number) not in (None, engines[number]), SECONDS)
    stack.wait_until(all_ready_and_as_recorded, SECONDS)
    assert {**engines_by_number(), number: 0} == {**engines, number: 0}, "an engine that was not killed was replaced"
    assert certificates_by_number()[number] not in certificates.values()
    assert {**certificates_by_number(), number: ""} == {**certificates, number: ""}


def engines_by_number() -> dict[int, int]:
    """The recorded processes, by the numbers of the replicas."""
    return {row.number: row.pid for row in Replica.objects.all() if row.pid is not None}


def certificates_by_number() -> dict[int, str]:
    return dict(Replica.objects.values_list("number", "certificate"))


def test_killed_engines_actors_and_supervisors_leave_no_orphaned_and_no_duplicate_engine(
    ray_stack: LiveStack, machines: Machines
) -> None:
    deployment = make_deployment(ray_stack, num_replicas=2)
    supervisor = start_supervisor(ray_stack)
    ray_stack.wait_until(all_ready_and_as_recorded, SECONDS)

    kill_and_wait(ray_stack, 0, lambda engine: os.killpg(engine, signal.SIGKILL))
    kill_and_wait(ray_stack, 1, lambda engine: os.kill(parent_of(engine), signal.SIGKILL))

    with machines.holding_engines() as waiting:
        deployment_scale(deployment=deployment, num_replicas=3)
        ray_stack.wait_until(lambda: len(waiting()) == 1, SECONDS)
        kill_9(supervisor)  # Ray has placed the third actor, but no row records its engine
        (third,) = waiting()
    assert Replica.objects.exclude(pid=None).count() == 2
    supervisor = start_supervisor(ray_stack)
    ray_stack.wait_until(all_ready_and_as_recorded, SECONDS)
    actors = {number: parent_of(pid) for number, pid in engines_by_number().items()}
    assert actors[2] == third, "the engine was started a second time"
    ray_stack.wait_until(lambda: machines.actor_processes() == set(actors.values()), SECONDS)

    engines = engines_by_number()
    supervisor.terminate()
    assert supervisor.wait(timeout=SECONDS) == 0
    supervisor = start_supervisor(ray_stack)
    ray_stack.wait_until(lambda: not holds_nothing(supervisor.pid), SECONDS)
    ray_stack.wait_until(all_ready_and_as_recorded, SECONDS)
    assert engines_by_number() == engines, "an engine was replaced although only the supervisor was killed"

    kill_and_wait(ray_stack, 2, lambda engine: os.kill(parent_of(engine), signal.SIGKILL))
    deployment_stop(deployment=deployment)
    ray_stack.wait_until(lambda: not machines.actor_processes() and not processes_of_replicas(), SECONDS)


def test_the_engines_of_a_lost_machine_are_started_on_another_one(ray_stack: LiveStack, machines: Machines) -> None:
    make_deployment(ray_stack, num_replicas=2)
    start_supervisor(ray_stack)
    ray_stack.wait_until(all_ready_and_as_recorded, SECONDS)
    kept = Replica.objects.get(host=HOSTS[0])

    machines.kill_raylet(HOSTS[1])
    ray_stack.wait_until(lambda: set(Replica.objects.values_list("host", flat=True)) == {HOSTS[0]}, SECONDS)
    ray_stack.wait_until(all_ready_and_as_recorded, SECONDS)

    assert Replica.objects.get(pk=kept.pk).pid == kept.pid
    machines.start(HOSTS[1])
