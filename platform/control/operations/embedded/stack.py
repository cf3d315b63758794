"""The processes of the embedded stack, which are started in this order and stopped in the reverse order.

    queue (Valkey) → endpoints (supervisor) → jobs (worker) → api (uvicorn)

With a Ray cluster (`local_ray`), its store, head and nodes are started before the endpoints.

Every process watches one pipe, the lifeline. Only the process of this module holds its write end. When this process
ends, even if it is killed, the pipe closes, and all other processes end too (see `workers.parent_death`).
"""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import redis
import structlog

from control.core.observability.metrics import SHARED_FOLDER
from control.core.processes.ports import free_port
from control.core.settings.config import LOOPBACK, Config
from control.operations.embedded.components import Component
from control.operations.embedded.local_ray import LocalRay
from control.operations.embedded.valkey import find_valkey, write_valkey_config

log = structlog.get_logger(__name__)

PROJECT_ROOT = Path(__file__).resolve().parents[4]
VALKEY_START_SECONDS = 10.0
HEAD_START_SECONDS = 60.0
ENDPOINT_STOP_SECONDS = 15.0
KEEPER_SECONDS = 10.0


class ClusterNotStarted(Exception):
    """The local Ray cluster could not be started."""


class Stack:
    def __init__(self, config: Config, *, host: str, port: int, cluster: LocalRay | None = None) -> None:
        self.config = config
        self.components: list[Component] = []
        self._host, self._port, self._cluster = host, port, cluster
        self._lifeline, self._write_end = os.pipe()
        self._environment = _environment(config)

    def start(self) -> None:
        if self.config.redis_url is None and (url := self._start_queue()) is not None:
            self._environment["SLIPSTREAM_REDIS_URL"] = url
        if self._cluster is not None:
            self._start_cluster(self._cluster)
        has_queue = "SLIPSTREAM_REDIS_URL" in self._environment
        python, manage = sys.executable, [sys.executable, str(PROJECT_ROOT / "manage.py")]
        endpoints = [*manage, "supervise_deployments", "--lifeline", str(self._lifeline)]
        jobs = [python, "-m", "celery", "-A", "workers.celery_app", "worker", "--loglevel", "INFO"]
        api = [python, "-m", "uvicorn", "control.asgi:application", "--host", self._host, "--port", str(self._port)]
        api += ["--lifespan", "on", "--ws", "none", "--timeout-graceful-shutdown", "10"]
        self._add("endpoints", endpoints, stop_seconds=ENDPOINT_STOP_SECONDS, children_stay=True)
        self._add("jobs", jobs if has_queue else [*manage, "runworker"], stop_seconds=30.0)
        self._add("api", api)

    def watch(self) -> None:
        for component in self.components:
            component.watch(self._lifeline)

    def stop(self) -> None:
        """Stops the processes in order. Closing the lifeline then ends those that are still running."""
        for component in reversed(self.components):
            component.stop()
        self.cut_lifeline()

    def cut_lifeline(self) -> None:
        """Closes the lifeline, which ends all processes at once. A second call has no effect."""
        if self._write_end < 0:
            return
        os.close(self._write_end)
        os.close(self._lifeline)
        self._write_end = -1
        for component in self.components:
            if component.process is not None:
                component.process.wait(KEEPER_SECONDS)
        if self._cluster is not None:
            self._cluster.delete_files()

    def _start_queue(self) -> str | None:
        """Starts the queue server. Returns its URL, or None if it cannot run on this machine; then workers poll."""
        return self._start_valkey("queue", self.config.data_dir / "valkey", without_it="workers poll instead")

    def _start_cluster(self, cluster: LocalRay) -> None:
        """Raises: ClusterNotStarted: the head does not listen."""
        self._environment |= cluster.variables
        store_url = self._start_valkey(
            "ray-store", cluster.store_folder, without_it="engines end with the head of the cluster", is_on_disk=True
        )
        head = cluster.head(store_url)
        component = self._add(head.name, head.command, variables=head.variables)
        if not wait_until(lambda: _is_listening(cluster.port), seconds=HEAD_START_SECONDS):
            raise ClusterNotStarted(f"the head of the Ray cluster does not listen; see {component.log_path}")
        for node in cluster.nodes():
            self._add(node.name, node.command, variables=node.variables)

    def _start_valkey(self, name: str, folder: Path, *, without_it: str, is_on_disk: bool = False) -> str | None:
        """Returns the server's URL. None: it cannot run on this machine, and a warning says what happens without it."""
        program = find_valkey()
        if program is None:
            log.warning(f"there is no Valkey for this machine; {without_it}", component=name)
            return None
        path, url = write_valkey_config(folder, port=free_port(), is_on_disk=is_on_disk)
        component = self._add(name, [str(program), str(path)])
        if wait_until(lambda: _valkey_responds(url), seconds=VALKEY_START_SECONDS):
            return url
        log.warning(f"Valkey does not answer; {without_it}", component=name, log=str(component.log_path))
        component.stop()
        self.components.remove(component)
        return None

    def _add(
        self,
        name: str,
        command: list[str],
        *,
        stop_seconds: float = 15.0,
        children_stay: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> Component:
        component = Component(
            name=name,
            command=command,
            cwd=PROJECT_ROOT,
            environment={**self._environment, **(variables or {})},
            log_path=self.config.data_dir / "logs" / f"{name}.log",
            stop_seconds=stop_seconds,
            children_stay=children_stay,
        )
        component.start(self._lifeline)
        self.components.append(component)
        return component


def wait_until(condition: Callable[[], bool], *, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _empty_folder(path: Path) -> Path:
    """Empties the folder of metrics, because the counts of an earlier start are obsolete."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def _valkey_responds(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def _environment(config: Config) -> dict[str, str]:
    """Returns the environment of the processes. Paths are absolute, because all of them run in the project's folder."""
    return {
        **os.environ,
        "SLIPSTREAM_DATA_DIR": str(config.data_dir),
        SHARED_FOLDER: str(_empty_folder(config.data_dir / "metrics")),
        "PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT), str(PROJECT_ROOT / "platform")]),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
