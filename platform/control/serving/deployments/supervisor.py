"""Makes processes match the rows of their replicas. `tick` never waits for a process, a probe or storage.

    desired   observed                        action of the supervisor that holds the replica (`leases`)
    running   no process was started          copy the files (stage) and launch, after the back-off of a crash
    running   the process has ended           record a crash: back off, or give up
    running   the process is of an older
              generation                      drain the process, then launch another; one replica after another
    running   the process is alive            probe it; record ready or degraded, or kill it if it hangs
    stopped   the process is alive            SIGTERM, later SIGKILL
    stopped   the process has ended           record stopped

A launcher runs the processes (`launchers`). A replica's row records which launcher has started its process; the
configuration names the launcher of the next one.

The next supervisor can rebuild all state of this supervisor, because the replica's row has the pid, start time, port
and token. It can therefore adopt the process, for which it creates a new `_Watched` with new timers.
"""

import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import structlog
from django.db import DatabaseError
from django.utils import timezone

from control.core.processes.engine_users import uid_range
from control.core.settings.config import Config
from control.serving.deployments import observations
from control.serving.deployments.autoscaling import Autoscaler
from control.serving.deployments.health import HealthWatch, engine_client
from control.serving.deployments.launchers.interface import DeviceWait, Ended, Launcher, LaunchError
from control.serving.deployments.launchers.process import ProcessLauncher
from control.serving.deployments.launchers.ray_cluster import RayLauncher
from control.serving.deployments.leases import leases_renew, replicas_claim, replicas_ensure, replicas_release
from control.serving.deployments.measuring import CounterSampler
from control.serving.deployments.metering import endpoint_meter
from control.serving.deployments.models import AVAILABLE, Replica
from control.serving.deployments.selectors import deployments_to_supervise, replicas_held
from control.serving.deployments.sleeping import SleepWatch, sleep_pool
from control.serving.deployments.states import RUNNING_STATES

log = structlog.get_logger(__name__)

NUM_PROBE_THREADS = 16
ENGINE_ERRORS = frozenset({"engine_exited", "engine_hung", "startup_timeout"})  # the engine's log may say why


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorTimings:
    """Intervals and time limits of the supervisor."""

    probe_seconds: float = 1.0
    startup_seconds: float = 900.0  # until the first good health check: large models load for minutes
    hang_seconds: float = 60.0  # a process that was healthy is killed when its checks have failed for this time
    drain_seconds: float = 60.0  # between SIGTERM and SIGKILL
    failures_to_degrade: int = 3
    sample_seconds: float = 30.0  # between two reads of an engine's counters
    renew_seconds: float = 3.0  # between two renewals of the leases
    settled_seconds: float = 1.0  # between two reads of the rows while no replica changes
    tidy_seconds: float = 60.0  # between two deletions of the files of deployments that have ended


@dataclass(slots=True)
class _Watched:
    """State of one replica's process that is kept between two ticks."""

    process: tuple[int | None, str]  # pid and start time
    health: HealthWatch
    sampler: CounterSampler
    sleep: SleepWatch = field(default_factory=SleepWatch)
    drain_until: float | None = None


class Supervisor:
    """Establishes the desired state of the replicas whose lease it holds.

    Any number of supervisors may run on one database. Those on one machine must have the same data folder.

    Args:
        lifeline: the read end of a pipe (see `launchers.engine_process`). The endpoints end when the process that holds
            the write end ends, and `stop` drains them. None: the endpoints keep serving when the supervisor ends.
        drains: whether `stop` drains the endpoints even without a lifeline. This is for containers: when a container
            ends, its processes are killed.
    """

    def __init__(
        self,
        config: Config,
        *,
        timings: SupervisorTimings | None = None,
        lifeline: int | None = None,
        drains: bool = False,
    ) -> None:
        self.config = config
        self.timings = timings or SupervisorTimings()
        self.drains = drains or lifeline is not None
        if uid_range(config) is None:
            log.warning("engines of all organizations run as the same user; SLIPSTREAM_ENGINE_UIDS separates them")
        self.id = f"{config.node_name}:{os.getpid()}:{secrets.token_hex(4)}"
        processes = ProcessLauncher(config, supervisor=self.id, lifeline=lifeline)
        self.launchers: dict[str, Launcher] = {processes.name: processes}
        if config.launcher == RayLauncher.name:
            self.launchers[RayLauncher.name] = RayLauncher(config, supervisor=self.id)
        self._watched: dict[int, _Watched] = {}  # by replica
        self._probe_pool = ThreadPoolExecutor(max_workers=NUM_PROBE_THREADS, thread_name_prefix="probe")
        self._sleep_pool = sleep_pool()
        self._autoscaler = Autoscaler()
        self._engine_client = engine_client()
        self._tidy_at = self._renew_at = self._read_at = 0.0  # of the monotonic clock

    def kill_strays(self) -> None:
        for launcher in self.launchers.values():
            launcher.kill_strays()

    def tick(self) -> None:
        if time.monotonic() < self._read_at:
            return
        held = self._claim()
        if all(map(_is_settled, held)):  # reading a thousand rows four times a second would use a core
            self._read_at = time.monotonic() + self.timings.settled_seconds
        for replica in held:
            ids = {"deployment_id": replica.deployment_id, "organization_id": replica.deployment.organization_id}
            try:
                with structlog.contextvars.bound_contextvars(**ids):
                    self._reconcile(replica)
            except DatabaseError:
                raise  # affects all deployments
            except Exception:  # boundary: an error in one deployment must not stop the others
                log.exception("could not reconcile", deployment=replica.deployment_id)
        for gone in self._watched.keys() - {replica.pk for replica in held}:
            del self._watched[gone]
        is_tidy_due = time.monotonic() >= self._tidy_at
        for launcher in self.launchers.values():
            launcher.retain(held)
            if is_tidy_due:
                launcher.kill_strays()
                launcher.tidy()
        if is_tidy_due:
            self._tidy_at = time.monotonic() + self.timings.tidy_seconds

    def _claim(self) -> list[Replica]:
        """Returns the replicas that this supervisor holds from now on, each with its deployment."""
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + self.timings.renew_seconds
            leases_renew(supervisor=self.id, node=self.config.node_name)
        replicas_ensure(deployments_to_supervise())
        launchers = list(self.launchers)
        replicas_claim(deployments_to_supervise(), supervisor=self.id, node=self.config.node_name, launchers=launchers)
        return list(replicas_held(self.id))

    def stop(self) -> None:
        """Ends the supervisor. If `drains` is set, also ends the endpoints; the next supervisor starts them again."""
        if self.drains:
            self._drain_all()
        replicas_release(Replica.objects.filter(supervisor=self.id))
        for launcher in self.launchers.values():
            launcher.close()
        self._probe_pool.shutdown(wait=False, cancel_futures=True)
        self._sleep_pool.shutdown(wait=False, cancel_futures=True)

    def _reconcile(self, replica: Replica) -> None:
        deployment = replica.deployment
        if replica.number == 0:
            self._autoscaler.follow(deployment)
        if not replica.has_process:
            self._without_process(replica)
            return
        ended = self._launcher(replica).observe(replica)
        if ended is not None:
            self._ended(replica, ended)
            return
        watched = self._watch(replica)
        endpoint_meter(replica=replica)
        if not _should_run(replica) or replica.generation != deployment.generation:
            self._drain(replica, watched)
        else:
            self._check(replica, watched)

    def _launcher(self, replica: Replica) -> Launcher:
        """Returns the launcher of the replica's process. A supervisor without it does not claim the replica."""
        return self.launchers[replica.launcher]

    def _ended(self, replica: Replica, ended: Ended) -> None:
        self._watched.pop(replica.pk, None)
        if not _should_run(replica) or replica.generation != replica.deployment.generation:
            observations.replica_ended(replica=replica)
        else:
            self._crashed(replica, ended.code, ended.message)

    def _without_process(self, replica: Replica) -> None:
        self._watched.pop(replica.pk, None)
        if not _should_run(replica):
            if replica.state != Replica.State.STOPPED or _is_surplus(replica):
                observations.replica_ended(replica=replica)
        elif replica.state != Replica.State.FAILED and (
            replica.not_before is None or replica.not_before <= timezone.now()
        ):
            self._launch(replica)

    def _launch(self, replica: Replica) -> None:
        launcher = self.launchers[self.config.launcher]
        record = partial(observations.replica_launched, replica=replica, launcher=launcher.name)
        try:
            is_recorded = launcher.ensure(replica, record)
        except DeviceWait as wait:
            self._wait_for_device(replica, wait)
            return
        except LaunchError as error:
            self._crashed(replica, error.code, str(error))
            if error.code == "no_free_device":  # a supervisor on another machine may have a free device
                replicas_release(Replica.objects.filter(pk=replica.pk, fence=replica.fence))
            return
        if is_recorded:
            log.info("endpoint launched", replica=str(replica), name=replica.deployment.name, pid=replica.pid)
            self._watched[replica.pk] = self._new_watch(replica)

    def _wait_for_device(self, replica: Replica, wait: DeviceWait) -> None:
        if (replica.blocked or {}).get("code") != wait.code:
            log.info("endpoint waits for a device", replica=str(replica), code=wait.code, reason=str(wait))
        observations.replica_blocked(replica=replica, code=wait.code, message=str(wait))
        # A supervisor on another machine may have a free device.
        replicas_release(Replica.objects.filter(pk=replica.pk, fence=replica.fence))

    def _watch(self, replica: Replica) -> _Watched:
        watched = self._watched.get(replica.pk)
        if watched is None or watched.process != _process_of(replica):
            log.info("endpoint adopted", replica=str(replica), name=replica.deployment.name, pid=replica.pid)
            watched = self._watched[replica.pk] = self._new_watch(replica)
        return watched

    def _new_watch(self, replica: Replica) -> _Watched:
        health = HealthWatch(interval_seconds=self.timings.probe_seconds)
        return _Watched(_process_of(replica), health, CounterSampler(self.timings.sample_seconds))

    def _drain(self, replica: Replica, watched: _Watched) -> None:
        now, drains_already = time.monotonic(), replica.state == Replica.State.DRAINING
        if watched.drain_until is None:
            if not observations.replica_draining(replica=replica):
                self._check(replica, watched)
                return
            watched.drain_until = now + self.timings.drain_seconds
            if not drains_already:  # a second SIGTERM, from the next supervisor, would cut off the open streams
                self._launcher(replica).drain(replica)
        elif now >= watched.drain_until:
            self._launcher(replica).delete(replica)

    def _check(self, replica: Replica, watched: _Watched) -> None:
        assert replica.port is not None
        if replica.state == Replica.State.READY:
            watched.sampler.poll(self._probe_pool, self._engine_client, replica)
        healthy = watched.health.poll(self._probe_pool, self._engine_client, replica)
        if healthy:
            load = watched.health.load
            if observations.replica_observe(replica=replica, healthy=True, load=load):
                log.info("endpoint healthy", replica=str(replica), name=replica.deployment.name, state=replica.state)
            if load is not None:
                watched.sleep.poll(self._sleep_pool, self._engine_client, replica, load)
            return
        if healthy is False and watched.health.failures >= self.timings.failures_to_degrade:
            observations.replica_observe(replica=replica, healthy=False)
        starting = replica.state == Replica.State.PROVISIONING
        limit = self.timings.startup_seconds if starting else self.timings.hang_seconds
        if watched.health.unhealthy_seconds > limit:
            self._launcher(replica).delete(replica)
            del self._watched[replica.pk]
            code = "startup_timeout" if starting else "engine_hung"
            self._crashed(replica, code, f"The engine could not generate a token for {limit:.0f} s.")

    def _crashed(self, replica: Replica, code: str, message: str) -> None:
        log.warning("endpoint crashed", replica=str(replica), name=replica.deployment.name, code=code, error=message)
        excerpt = self._launcher(replica).logs(replica) if code in ENGINE_ERRORS else ""
        observations.replica_crashed(replica=replica, code=code, message=message, log=excerpt)

    def _drain_all(self) -> None:
        running = [
            (replica, launcher)
            for replica in replicas_held(self.id)
            if replica.has_process and (launcher := self._launcher(replica)).drains_with_supervisor
        ]
        alive = [(replica, launcher) for replica, launcher in running if launcher.observe(replica) is None]
        for replica, launcher in alive:
            observations.replica_draining(replica=replica, is_forced=True)
            launcher.drain(replica)
        deadline = time.monotonic() + self.timings.drain_seconds
        for replica, launcher in alive:
            while launcher.observe(replica) is None and time.monotonic() < deadline:
                time.sleep(0.05)
            launcher.delete(replica)
            observations.replica_ended(replica=replica)


def _process_of(replica: Replica) -> tuple[int | None, str]:
    return replica.pid, replica.process_started


def _is_surplus(replica: Replica) -> bool:
    return replica.number >= replica.deployment.num_replicas


def _is_settled(replica: Replica) -> bool:
    return _should_run(replica) and replica.state in AVAILABLE and replica.generation == replica.deployment.generation


def _should_run(replica: Replica) -> bool:
    return replica.deployment.state in RUNNING_STATES and not _is_surplus(replica)
