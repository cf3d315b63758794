"""The launcher `ray`: each engine belongs to a detached actor of a Ray cluster, on a machine that Ray chooses.

An actor's name is made from deployment, replica and generation. Ray gives a name to one actor at a time, so a replica
is not started twice, and the next supervisor finds the actors of a killed one by their names. The replica's row holds
the actor's id in `process_started`: an actor with the same name and another id is not the recorded one.

    the actor is
    created by         `ensure`, in a thread; the actor copies the files and starts the engine, then `ensure` records it
    watched by         a call of `EngineActor.ended`, which fails when the actor or its machine is lost
    killed by          `delete`, `observe` after the end of the engine, and `kill_strays`; its engine ends with it
"""

import time
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import structlog
from django.db.models import prefetch_related_objects

from control.core.settings.config import Config
from control.models.engines.planning import Purpose, Workload, memory_needed
from control.models.engines.schemas import EngineOptions
from control.serving.deployments.launchers.engine_process import process_name
from control.serving.deployments.launchers.interface import DeviceWait, Ended, LaunchError, Record
from control.serving.deployments.launchers.ray_calls import (
    Actor,
    ActorGone,
    ClusterUnavailable,
    Needs,
    RayCluster,
    result_of,
)
from control.serving.deployments.launchers.ray_order import order_of
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.selectors import engines_recorded, engines_to_adopt, replicas_not_stray

log = structlog.get_logger(__name__)

# How long an actor may wait for a machine. A failed wait counts as a crash of the replica, and a replica fails after
# five crashes within ten minutes. Five such waits take longer than ten minutes, so a replica that only lacks a machine
# does not fail, and starts when a machine is added to the cluster.
PLACEMENT_SECONDS = 180.0
RETRY_SECONDS = 1.0  # between two attempts while the state of an actor is unknown
LOG_SECONDS = 5.0  # between two reads of the log of an engine that is not healthy


@dataclass(slots=True)
class _Start:
    """An actor that is being created, or adopted, and whose engine is not recorded yet."""

    actor: "Future[Actor]"
    since: float = field(default_factory=time.monotonic)
    placed: "Future[Any] | None" = None
    started: "Future[Any] | None" = None


@dataclass(slots=True)
class _Watch:
    """A recorded actor. A new supervisor has to find it by its name first."""

    found: "Future[Actor | None]"
    actor: Actor | None = None
    ended: "Future[Any] | None" = None
    is_to_drain: bool = False
    log_call: "Future[Any] | None" = None
    log_at: float = 0.0


class RayLauncher:
    """Args: supervisor: the id of the supervisor."""

    name = "ray"
    drains_with_supervisor = False

    def __init__(self, config: Config, *, supervisor: str, cluster: RayCluster | None = None) -> None:
        self.config = config
        self._supervisor = supervisor
        self._cluster = cluster or RayCluster(config)
        self._starts: dict[str, _Start] = {}  # by the name of the actor
        self._watches: dict[str, _Watch] = {}  # by the id of the actor
        self._logs: dict[int, str] = {}  # by replica
        self._killed: set[str] = set()  # ids of actors that may not have ended yet
        self._actors: Future[dict[str, str]] | None = None
        self._retry_at: dict[str, float] = {}  # of the monotonic clock; by the name of the actor

    def ensure(self, replica: Replica, record: Record) -> bool:
        if hardware := replica.deployment.hardware:
            message = f"Ray places the engines, so an endpoint cannot ask for hardware {hardware!r}."
            raise DeviceWait(message, code="no_such_hardware")
        name = process_name(replica)
        start = self._starts.get(name)
        if time.monotonic() < self._retry_at.get(name, 0.0):
            return False
        if start is None:
            prefetch_related_objects([replica.deployment], "adapters", "speculator__base_speculator")  # for the order
            needs = needs_of(self.config, replica.deployment)
            order = order_of(replica, uses_tls=self.config.engine_tls)
            self._starts[name] = _Start(self._cluster.create(name, order, needs))
            return False
        try:
            started = self._progress(name, start)
        except ClusterUnavailable as error:
            self._wait(name, error)
            del self._starts[name]  # the next attempt finds the actor if it exists
            return False
        except ActorGone as error:
            del self._starts[name]
            if start.started is not None:  # the actor may live: its method may have raised an exception
                self._kill(name, start.actor.result().id)
            raise LaunchError("The actor of the engine ended before the engine was started.") from error
        if started is None:
            return False
        del self._starts[name]
        return self._record(name, start.actor.result(), started, record)

    def _progress(self, name: str, start: _Start) -> dict[str, Any] | None:
        """Returns the answer of `EngineActor.started`; None: there is none yet.

        Raises: ClusterUnavailable; ActorGone; LaunchError.
        """
        if not start.actor.done():
            return None
        actor = result_of(start.actor)
        if start.placed is None or start.started is None:
            if actor.id in self._killed:
                self._kill(name, actor.id)
                raise ClusterUnavailable("the actor that has the name was killed and has not ended yet")
            start.placed, start.started = actor.call("placed"), actor.call("started")
        if start.started.done():
            started: dict[str, Any] = result_of(start.started)
            return started
        if not start.placed.done() and time.monotonic() - start.since > PLACEMENT_SECONDS:
            del self._starts[name]
            self._kill(name, actor.id)
            message = f"The endpoint waited {PLACEMENT_SECONDS:.0f} s for a machine of the Ray cluster."
            raise LaunchError(message, code="no_free_device")
        return None

    def _record(self, name: str, actor: Actor, started: dict[str, Any], record: Record) -> bool:
        if "code" in started:
            self._kill(name, actor.id)
            raise LaunchError(started["message"], code=started["code"])
        is_recorded = record(
            node=f"ray:{started['host']}",
            device=started["device"],
            host=started["host"],
            port=started["port"],
            token=started["token"],
            operator_token=started["operator_token"],
            certificate=started["certificate"],
            pid=started["pid"],
            process_started=actor.id,
        )
        if not is_recorded:  # another supervisor may have recorded this actor meanwhile
            self.kill_strays()
        return is_recorded

    def observe(self, replica: Replica) -> Ended | None:
        name, watch = replica.process_name(replica.generation), self._watch(replica)
        if time.monotonic() < self._retry_at.get(name, 0.0):
            return None
        try:
            return self._observed(replica, watch)
        except ClusterUnavailable as error:
            self._wait(name, error)
            self._watches[replica.process_started] = _Watch(self._cluster.find(name), is_to_drain=watch.is_to_drain)
            return None
        except ActorGone:
            return Ended("node_lost", "The Ray actor of the engine, or its machine, has ended.")

    def _observed(self, replica: Replica, watch: _Watch) -> Ended | None:
        """Raises: ClusterUnavailable; ActorGone."""
        if watch.actor is None:
            if not watch.found.done():
                return None
            actor = result_of(watch.found)
            if actor is None or actor.id != replica.process_started:
                return Ended("engine_exited", "The engine ended while no supervisor was running.")
            watch.actor, watch.ended = actor, actor.call("ended")
        assert watch.ended is not None
        if watch.is_to_drain:
            watch.actor.call("drain")
            watch.is_to_drain = False
        if not watch.ended.done():
            self._read_log(replica, watch)
            return None
        ended = result_of(watch.ended)
        self._logs[replica.pk] = ended["log"]
        self._kill(replica.process_name(replica.generation), watch.actor.id)
        return Ended("engine_exited", f"The engine ended with code {ended['exit_code']}.")

    def _read_log(self, replica: Replica, watch: _Watch) -> None:
        """Keeps the end of the log of an engine that may have to be killed. The log stays on the engine's machine."""
        if watch.log_call is not None and watch.log_call.done():
            self._logs[replica.pk], watch.log_call = result_of(watch.log_call), None
        is_suspect = replica.state in (Replica.State.PROVISIONING, Replica.State.DEGRADED)
        if is_suspect and watch.log_call is None and watch.actor is not None and time.monotonic() >= watch.log_at:
            watch.log_call, watch.log_at = watch.actor.call("log"), time.monotonic() + LOG_SECONDS

    def _watch(self, replica: Replica) -> _Watch:
        watch = self._watches.get(replica.process_started)
        if watch is None:
            watch = self._watches[replica.process_started] = _Watch(
                self._cluster.find(replica.process_name(replica.generation))
            )
        return watch

    def drain(self, replica: Replica) -> None:
        self._watch(replica).is_to_drain = True  # `observe` asks the actor, once it has been found

    def delete(self, replica: Replica) -> None:
        self._kill(replica.process_name(replica.generation), replica.process_started)

    def logs(self, replica: Replica) -> str:
        return self._logs.get(replica.pk, "")

    def retain(self, held: Collection[Replica]) -> None:
        self._cluster.release_sigterm()
        dropped = self._starts.keys() - {process_name(replica) for replica in held}
        for name in dropped:
            del self._starts[name]
        for gone in self._watches.keys() - {replica.process_started for replica in held}:
            del self._watches[gone]
        for gone_id in self._logs.keys() - {replica.pk for replica in held}:
            del self._logs[gone_id]
        self._retry_at = {name: at for name, at in self._retry_at.items() if at > time.monotonic()}
        if dropped:
            self.kill_strays()
        if self._actors is not None and self._actors.done():
            actors, self._actors = self._actors, None
            self._kill_strays_among(actors)

    def kill_strays(self) -> None:
        """Lists the actors in a thread. `retain` kills the strays: it reads the rows after the list was made, so that
        the rows are never older."""
        if self._actors is None:
            self._actors = self._cluster.actors()

    def _kill_strays_among(self, listed: "Future[dict[str, str]]") -> None:
        try:
            actors = result_of(listed)
        except ClusterUnavailable:
            return  # the next call lists them again
        self._killed &= set(actors.values())
        known = set(Deployment.objects.values_list("pk", flat=True))
        recorded, to_adopt = engines_recorded(self.name), engines_to_adopt()
        of_others = replicas_not_stray(self._supervisor, self.config.node_name)[1]
        for name, actor_id in actors.items():
            replica = name.rpartition("-")[0]
            is_wanted = actor_id in recorded or name in to_adopt or name in self._starts
            if replica.rpartition("-")[0] in known and not is_wanted and replica not in of_others:
                log.warning("killing a stray endpoint", replica=replica, actor=actor_id)
                self._kill(name, actor_id)

    def tidy(self) -> None:
        """Does nothing: the files lie on the machines of the actors."""

    def close(self) -> None:
        self._cluster.close()

    def _wait(self, name: str, error: ClusterUnavailable) -> None:
        log.warning("nothing is known of an actor", actor=name, error=str(error))
        self._retry_at[name] = time.monotonic() + RETRY_SECONDS

    def _kill(self, name: str, actor_id: str) -> None:
        self._killed.add(actor_id)
        self._cluster.kill(name, actor_id)


def needs_of(config: Config, deployment: Deployment) -> Needs:
    """Returns what the deployment's engine needs of a machine. The size of the speculator is not counted."""
    options = EngineOptions.model_validate(deployment.engine or {})
    adapters = list(deployment.adapters.all())
    workload = Workload(purpose=Purpose.ENDPOINT, base_model=deployment.base_model, adapters=adapters)
    memory = memory_needed(options, workload)  # by the kinds of devices that can run the engine
    if config.device == "cpu" or "cuda" not in memory:
        num_gpus: int | None = 0
    else:
        num_gpus = 1 if config.device.startswith("cuda") or "cpu" not in memory else None
    return Needs(num_gpus, config.endpoint_memory_bytes or memory.get("cpu") or None)
