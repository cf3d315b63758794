"""The few calls of Ray that the launcher `ray` makes. Calls that wait for the cluster run in threads.

The supervisor's process becomes a driver of the Ray cluster, so a raylet must run on its machine. Ray is imported and
connected at the first call, in a thread, where it does not replace Python's handlers of signals.
"""

import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import structlog
from django.core.exceptions import ImproperlyConfigured

from control.core.settings.config import Config
from control.serving.deployments.launchers.ray_actor import EngineActor

log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")

_ROOT = Path(__file__).resolve().parents[5]
CODE = [str(_ROOT / "platform"), str(_ROOT)]  # the same paths on all machines of the cluster
RETRY_SECONDS = 5.0
NUM_THREADS = 8


class ClusterUnavailable(Exception):
    """The cluster or the actor did not answer, so the actor's state is unknown. A later call may succeed."""


class ActorGone(Exception):
    """The actor has ended, or its machine is lost."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an engine needs of its machine.

    Attributes:
        num_gpus: number of GPUs. None: one GPU if the cluster has any.
        memory_bytes: the memory that the engine needs on a machine without a GPU. None: unknown.
    """

    num_gpus: int | None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Actor:
    handle: Any

    @property
    def id(self) -> str:
        return str(self.handle._actor_id.hex())

    def call(self, method: str) -> "Future[Any]":
        """Calls a method of `EngineActor` without waiting for its result; see `result_of`."""
        future: Future[Any] = getattr(self.handle, method).remote().future()
        return future


def result_of(future: "Future[Any]") -> Any:
    """Returns the result of a call that is done. Raises: ActorGone; ClusterUnavailable."""
    try:
        return future.result()
    except (ActorGone, ClusterUnavailable):
        raise
    except Exception as error:
        raise _translated(error) from error


def _translated(error: Exception) -> Exception:
    """Returns ActorGone if the error means that the actor has ended, and ClusterUnavailable for all other errors."""
    from ray import exceptions

    has_ended = isinstance(error, exceptions.RayActorError | exceptions.RayTaskError)
    if has_ended and not isinstance(error, exceptions.ActorUnavailableError):
        return ActorGone(str(error))
    return ClusterUnavailable(str(error))


class RayCluster:
    """Raises: ImproperlyConfigured: Ray is not installed."""

    def __init__(self, config: Config) -> None:
        if find_spec("ray") is None:
            raise ImproperlyConfigured("SLIPSTREAM_LAUNCHER=ray needs the packages of requirements-ray.txt")
        self._address, self._namespace = config.ray_address, config.ray_namespace
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="ray")
        self._lock = threading.Lock()
        self._ray: Any = None  # the module `ray`, after it has been connected
        self._has_sigterm = False
        self._retry_at = 0.0  # of the monotonic clock

    def create(self, name: str, order: str, needs: Needs) -> "Future[Actor]":
        """Creates the actor with this name, or finds the one that has the name already: Ray allows only one."""
        return self._submit(lambda ray: self._create(ray, name, order, needs))

    def find(self, name: str) -> "Future[Actor | None]":
        return self._submit(lambda ray: self._find(ray, name))

    def kill(self, name: str, actor_id: str) -> "Future[None]":
        """Ends the actor and thereby its engine, unless the name belongs to another actor by now."""
        return self._submit(lambda ray: self._kill(ray, name, actor_id))

    def actors(self) -> "Future[dict[str, str]]":
        """Returns the ids of all actors of the installation by their names."""
        return self._submit(self._actors)

    def release_sigterm(self) -> None:
        """Makes SIGTERM call the handler that the process had installed. Only the main thread may call this.

        When Ray's core connects, it installs its own handler, which aborts the process three seconds after SIGTERM.
        """
        if self._has_sigterm:
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
            self._has_sigterm = False

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._ray is not None:
            self._ray.shutdown()

    def _submit(self, work: Callable[[Any], _Result]) -> "Future[_Result]":
        return self._threads.submit(lambda: work(self._connected()))

    def _connected(self) -> Any:
        """Returns the module `ray`, connected to the cluster. Raises: ClusterUnavailable."""
        import ray
        from ray.job_config import JobConfig

        with self._lock:
            if ray.is_initialized():
                return ray
            if time.monotonic() < self._retry_at:
                raise ClusterUnavailable("the Ray cluster could not be reached a moment ago")
            self._retry_at = time.monotonic() + RETRY_SECONDS
            try:
                ray.init(
                    address=self._address,
                    namespace=self._namespace,
                    job_config=JobConfig(code_search_path=CODE),  # workers import our files instead of pickled classes
                    log_to_driver=False,
                    configure_logging=False,
                )
            except (ConnectionError, RuntimeError, OSError, ValueError) as error:
                log.warning("the Ray cluster cannot be reached", address=self._address, error=str(error))
                raise ClusterUnavailable(str(error)) from error
            self._ray, self._has_sigterm = ray, True
            log.info("connected to the Ray cluster", address=self._address, namespace=self._namespace)
            return ray

    def _create(self, ray: Any, name: str, order: str, needs: Needs) -> Actor:
        num_gpus = needs.num_gpus
        if num_gpus is None:
            num_gpus = 1 if ray.cluster_resources().get("GPU", 0) >= 1 else 0
        try:
            handle = (
                ray.remote(EngineActor)
                .options(
                    name=name,
                    namespace=self._namespace,
                    lifetime="detached",  # the actor outlives the supervisor
                    max_restarts=0,  # the supervisor decides when an engine is started again
                    num_cpus=1,
                    num_gpus=num_gpus,
                    memory=None if num_gpus else needs.memory_bytes,
                    scheduling_strategy="SPREAD",  # the loss of a machine should cost few replicas of a deployment
                )
                .remote(order)
            )
        except ray.exceptions.ActorAlreadyExistsError as error:
            found = self._find(ray, name)
            if found is None:
                raise ClusterUnavailable(f"the actor {name} is about to end") from error
            return found
        return Actor(handle)

    def _find(self, ray: Any, name: str) -> Actor | None:
        try:
            return Actor(ray.get_actor(name, namespace=self._namespace))
        except ValueError:  # the cluster has no such actor
            return None

    def _kill(self, ray: Any, name: str, actor_id: str) -> None:
        actor = self._find(ray, name)
        if actor is not None and actor.id == actor_id:
            ray.kill(actor.handle, no_restart=True)

    def _actors(self, ray: Any) -> dict[str, str]:
        found = ((name, self._find(ray, name)) for name in ray.util.list_named_actors())
        return {name: actor.id for name, actor in found if actor is not None}
