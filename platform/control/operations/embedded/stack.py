"""The processes of the embedded stack, which are started in this order and stopped in the reverse order.

    queue (Valkey) → endpoints (supervisor) → jobs (worker) → api (uvicorn)

Every process watches one pipe, the lifeline. Only the process of this module holds its write end. When this process
ends, even if it is killed, the pipe closes, and all other processes end too (see `workers.parent_death`).
"""

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import redis
import structlog

from control.core.observability.metrics import SHARED_FOLDER
from control.core.processes.ports import free_port
from control.core.settings.config import Config
from control.operations.embedded.components import Component
from control.operations.embedded.valkey import find_valkey, write_valkey_config

log = structlog.get_logger(__name__)

PROJECT_ROOT = Path(__file__).resolve().parents[4]
QUEUE_START_SECONDS = 10.0
ENDPOINT_DRAIN_SECONDS = 10.0
KEEPER_SECONDS = 10.0


class Stack:
    def __init__(self, config: Config, *, host: str, port: int) -> None:
        self.config = config
        self.components: list[Component] = []
        self._host, self._port = host, port
        self._lifeline, self._write_end = os.pipe()
        self._environment = _environment(config)

    def start(self) -> None:
        if self.config.redis_url is None and (url := self._start_queue()) is not None:
            self._environment["SLIPSTREAM_REDIS_URL"] = url
        has_queue = "SLIPSTREAM_REDIS_URL" in self._environment
        python, manage = sys.executable, [sys.executable, str(PROJECT_ROOT / "manage.py")]
        endpoints = [*manage, "supervise_deployments", "--lifeline", str(self._lifeline)]
        endpoints += ["--drain-seconds", str(ENDPOINT_DRAIN_SECONDS)]
        jobs = [python, "-m", "celery", "-A", "workers.celery_app", "worker", "--loglevel", "INFO"]
        api = [python, "-m", "uvicorn", "control.asgi:application", "--host", self._host, "--port", str(self._port)]
        api += ["--lifespan", "on", "--ws", "none", "--timeout-graceful-shutdown", "10"]
        self._add("endpoints", endpoints, stop_seconds=ENDPOINT_DRAIN_SECONDS + 5.0, children_stay=True)
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

    def _start_queue(self) -> str | None:
        """Starts the queue server. Returns its URL, or None if it cannot run on this machine; then workers poll."""
        program = find_valkey()
        if program is None:
            log.warning("there is no queue server for this machine; workers poll instead")
            return None
        path, url = write_valkey_config(self.config.data_dir / "valkey", port=free_port())
        component = self._add("queue", [str(program), str(path)])
        if wait_until(lambda: _queue_responds(url), seconds=QUEUE_START_SECONDS):
            return url
        log.warning("the queue server does not answer; workers poll instead", log=str(component.log_path))
        component.stop()
        self.components.remove(component)
        return None

    def _add(
        self, name: str, command: list[str], *, stop_seconds: float = 15.0, children_stay: bool = False
    ) -> Component:
        component = Component(
            name=name,
            command=command,
            cwd=PROJECT_ROOT,
            environment=dict(self._environment),
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


def _queue_responds(url: str) -> bool:
    try:
        with redis.Redis.from_url(url, socket_timeout=1.0, socket_connect_timeout=1.0) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False


def _environment(config: Config) -> dict[str, str]:
    """Returns the environment of the processes. Paths are absolute, because all of them run in the project's folder."""
    return {
        **os.environ,
        "SLIPSTREAM_DATA_DIR": str(config.data_dir),
        SHARED_FOLDER: str(_empty_folder(config.data_dir / "metrics")),
        "PYTHONPATH": os.pathsep.join([str(PROJECT_ROOT), str(PROJECT_ROOT / "platform")]),
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "PASSIVE"),
    }
