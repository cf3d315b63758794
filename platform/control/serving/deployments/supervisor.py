"""Makes processes match the rows of their replicas. `tick` never waits for a process, a probe or storage.

    desired   observed                        action of the supervisor that holds the replica (`leases`)
    running   no process was started          copy the files (stage) and launch, after the back-off of a crash
    running   the process has ended           record a crash: back off, or give up
    running   the process is of an older
              generation                      drain the process, then launch another; one replica after another
    running   the process is alive            probe it; record ready or degraded, or kill it if it hangs
    stopped   the process is alive            SIGTERM, later SIGKILL
    stopped   the process has ended           record stopped

The supervisor keeps no state that the next supervisor could not rebuild: pid, start time, port and token are in the
replica's row. The next supervisor can therefore adopt the process, which means to watch it without being its parent. It
creates a new `_Watched` for the process, with new timers and without a handle of the child.
"""

import os
import secrets
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import structlog
from botocore.exceptions import BotoCoreError, ClientError
from django.db import DatabaseError
from django.db.models import prefetch_related_objects
from django.utils import timezone

from control.core.processes.engine_homes import engine_homes_limit
from control.core.processes.engine_users import uid_range
from control.core.settings.config import Config
from control.core.storage.backends import StorageError
from control.serving.deployments import observations
from control.serving.deployments.autoscaling import Autoscaler
from control.serving.deployments.devices import NoFreeDevice, device_for_engine
from control.serving.deployments.health import HealthWatch, engine_client
from control.serving.deployments.launcher import (
    AlreadyRunning,
    LaunchError,
    launch,
    log_excerpt,
    only_starter,
    stage,
)
from control.serving.deployments.leases import leases_renew, replicas_claim, replicas_ensure, replicas_release
from control.serving.deployments.leftovers import delete, hide_unused
from control.serving.deployments.measuring import CounterSampler
from control.serving.deployments.metering import endpoint_meter
from control.serving.deployments.models import AVAILABLE, Deployment, Replica
from control.serving.deployments.processes import ProcessIdentity, endpoint_processes
from control.serving.deployments.selectors import deployments_to_supervise, replicas_held, replicas_not_stray
from control.serving.deployments.sleeping import SleepWatch, sleep_pool
from control.serving.deployments.staging_pool import StagingPool
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

    identity: ProcessIdentity
    health: HealthWatch
    sampler: CounterSampler
    process: "subprocess.Popen[bytes] | None"  # None: adopted, so its exit code stays unknown
    sleep: SleepWatch = field(default_factory=SleepWatch)
    drain_until: float | None = None

    def exit_message(self) -> str:
        code = self.process.poll() if self.process else None
        return "The engine ended." if code is None else f"The engine ended with code {code}."


class Supervisor:
    """Establishes the desired state of the replicas whose lease it holds.

    Any number of supervisors may run on one database. Those on one machine must have the same data folder.

    Args:
        lifeline: the read end of a pipe (see `launcher`). The endpoints end when the process that holds the write end
            ends, and `stop` drains them. None: the endpoints keep serving when the supervisor ends.
        drains: whether `stop` drains the endpoints even without a lifeline, as in a container, whose end kills them.
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
        self.lifeline = lifeline
        self.drains = drains or lifeline is not None
        if uid_range(config) is None:
            log.warning("engines of all organizations run as the same user; SLIPSTREAM_ENGINE_UIDS separates them")
        self.id = f"{config.node_name}:{os.getpid()}:{secrets.token_hex(4)}"
        self._watched: dict[int, _Watched] = {}  # by replica
        self._staging: dict[tuple[str, int], Future[Path | None]] = {}  # by deployment and its generation
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._killed: list[tuple[ProcessIdentity, str]] = []  # with their devices
        self._staging_pool = StagingPool()
        self._probe_pool = ThreadPoolExecutor(max_workers=NUM_PROBE_THREADS, thread_name_prefix="probe")
        self._sleep_pool = sleep_pool()
        self._autoscaler = Autoscaler()
        self._engine_client = engine_client()
        self._tidy_at = self._renew_at = self._read_at = 0.0  # of the monotonic clock

    def kill_strays(self) -> None:
        """Kills endpoint processes of this machine that belong to a replica but are not the process in its row.

        A supervisor that dies between launching a process and recording it leaves such a process behind. The
        processes of replicas that another supervisor holds are spared: it may be about to record them.
        """
        names = endpoint_processes()  # read before the rows, so that the rows are never older
        known = set(Deployment.objects.values_list("pk", flat=True))
        sessions, of_others = replicas_not_stray(self.id, self.config.node_name)
        for pid, name in names.items():
            replica = name.rpartition("-")[0]
            try:
                session = os.getsid(pid)
                if replica.rpartition("-")[0] in known and session not in sessions and replica not in of_others:
                    log.warning("killing a stray endpoint", replica=name, pid=pid)
                    os.killpg(session, signal.SIGKILL)
            except ProcessLookupError:
                continue  # the process has ended meanwhile

    def tick(self) -> None:
        self.reap()
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
            self._forget(gone)
        wanted = {(replica.deployment_id, replica.deployment.generation) for replica in held}
        for key in self._staging.keys() - wanted:
            self._staging.pop(key).cancel()
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + self.timings.tidy_seconds
            self.kill_strays()
            self._probe_pool.submit(self._limit_homes)
            in_use = deployments_to_supervise().values_list("pk", flat=True)
            self._probe_pool.submit(delete, hide_unused(self.config, set(in_use)))

    def _claim(self) -> list[Replica]:
        """Returns the replicas that this supervisor holds from now on, each with its deployment."""
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + self.timings.renew_seconds
            leases_renew(supervisor=self.id, node=self.config.node_name)
        replicas_ensure(deployments_to_supervise())
        replicas_claim(deployments_to_supervise(), supervisor=self.id, node=self.config.node_name)
        return list(replicas_held(self.id))

    def _limit_homes(self) -> None:
        try:
            engine_homes_limit(self.config)
        except OSError:
            log.exception("could not limit the homes of engines")

    def reap(self) -> None:
        """Collects the exit codes of children that are no longer watched, so that they do not stay zombies."""
        self._unreaped = [process for process in self._unreaped if process.poll() is None]

    def stop(self) -> None:
        """Ends the supervisor. If `drains` is set, also ends the endpoints; the next supervisor starts them again."""
        if self.drains:
            self._drain_all()
        replicas_release(Replica.objects.filter(supervisor=self.id))
        self._staging_pool.shutdown()
        self._probe_pool.shutdown(wait=False, cancel_futures=True)
        self._sleep_pool.shutdown(wait=False, cancel_futures=True)

    def _reconcile(self, replica: Replica) -> None:
        deployment, identity = replica.deployment, self._identity(replica)
        if replica.number == 0:
            self._autoscaler.follow(deployment)
        if identity is None or not identity.is_alive():
            self._without_process(replica)
            return
        watched = self._watch(replica, identity)
        endpoint_meter(replica=replica)
        if not _should_run(replica) or replica.generation != deployment.generation:
            self._drain(replica, watched)
        else:
            self._check(replica, watched)

    def _without_process(self, replica: Replica) -> None:
        watched, deployment = self._forget(replica.pk), replica.deployment
        if not _should_run(replica):
            if replica.has_process or replica.state != Replica.State.STOPPED or _is_surplus(replica):
                observations.replica_ended(replica=replica)
        elif replica.has_process and replica.generation != deployment.generation:
            observations.replica_ended(replica=replica)
        elif replica.has_process and replica.node not in ("", self.config.node_name):
            self._crashed(replica, "node_lost", "The machine of the engine does not answer any more.")
        elif replica.has_process:
            message = watched.exit_message() if watched else "The engine ended while no supervisor was running."
            self._crashed(replica, "engine_exited", message)
        elif replica.state != Replica.State.FAILED and (
            replica.not_before is None or replica.not_before <= timezone.now()
        ):
            self._launch(replica)

    def _launch(self, replica: Replica) -> None:
        deployment = replica.deployment
        key = (deployment.pk, deployment.generation)
        if key not in self._staging:
            prefetch_related_objects([deployment], "adapters")
            self._staging[key] = self._staging_pool.submit(
                deployment.organization_id, partial(stage, self.config, deployment)
            )
        if not self._staging[key].done():
            return
        staged = self._staging.pop(key)
        try:
            with only_starter(self.config):
                self._start(replica, staged.result())
        except (StorageError, ClientError, BotoCoreError, OSError) as error:
            log.warning("speculator not staged", deployment=deployment.pk, error=str(error))
            self._crashed(replica, "speculator_unavailable", "The speculator could not be read from storage.")
        except NoFreeDevice as error:
            self._crashed(replica, "no_free_device", f"The endpoint needs a device, but {error}.")
            # A supervisor on another machine may have a free device.
            replicas_release(Replica.objects.filter(pk=replica.pk, fence=replica.fence))
        except AlreadyRunning as error:
            self._crashed(replica, "launch_failed", str(error))
            self.kill_strays()
        except LaunchError as error:
            self._crashed(replica, "launch_failed", str(error))

    def _start(self, replica: Replica, speculator_dir: Path | None) -> None:
        """Launches the replica's process and records it. Raises: NoFreeDevice; LaunchError."""
        device = device_for_engine(self.config, ending=self._devices_of_killed())
        endpoint = launch(self.config, replica, device=device, speculator_dir=speculator_dir, lifeline=self.lifeline)
        if not observations.replica_launched(
            replica=replica,
            node=self.config.node_name,
            device=device,
            host=self.config.engine_host,
            port=endpoint.port,
            token=endpoint.token,
            operator_token=endpoint.operator_token,
            pid=endpoint.identity.pid,
            process_started=endpoint.identity.started,
        ):
            endpoint.identity.kill()
            self._killed.append((endpoint.identity, device))
            self._unreaped.append(endpoint.process)
            return
        log.info("endpoint launched", replica=str(replica), name=replica.deployment.name, pid=endpoint.identity.pid)
        self._watched[replica.pk] = self._new_watch(endpoint.identity, endpoint.process)

    def _devices_of_killed(self) -> list[str]:
        """Devices of killed processes that have not ended yet. The replicas' rows no longer name these devices."""
        self._killed = [(identity, device) for identity, device in self._killed if identity.is_alive()]
        return [device for _, device in self._killed]

    def _watch(self, replica: Replica, identity: ProcessIdentity) -> _Watched:
        watched = self._watched.get(replica.pk)
        if watched is None or watched.identity != identity:
            log.info("endpoint adopted", replica=str(replica), name=replica.deployment.name, pid=identity.pid)
            watched = self._watched[replica.pk] = self._new_watch(identity, None)
        return watched

    def _new_watch(self, identity: ProcessIdentity, process: "subprocess.Popen[bytes] | None") -> _Watched:
        health = HealthWatch(interval_seconds=self.timings.probe_seconds)
        return _Watched(identity, health, CounterSampler(self.timings.sample_seconds), process)

    def _drain(self, replica: Replica, watched: _Watched) -> None:
        now = time.monotonic()
        if watched.drain_until is None:
            if not observations.replica_draining(replica=replica):
                self._check(replica, watched)
                return
            watched.drain_until = now + self.timings.drain_seconds
            watched.identity.terminate()
        elif now >= watched.drain_until:
            watched.identity.kill()

    def _check(self, replica: Replica, watched: _Watched) -> None:
        assert replica.port is not None
        if replica.state == Replica.State.READY:
            watched.sampler.poll(self._probe_pool, self._engine_client, replica)
        healthy = watched.health.poll(self._probe_pool, self._engine_client, replica.port, replica.token)
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
            watched.identity.kill()
            self._killed.append((watched.identity, replica.device))
            self._forget(replica.pk)
            code = "startup_timeout" if starting else "engine_hung"
            self._crashed(replica, code, f"The engine could not generate a token for {limit:.0f} s.")

    def _crashed(self, replica: Replica, code: str, message: str) -> None:
        log.warning("endpoint crashed", replica=str(replica), name=replica.deployment.name, code=code, error=message)
        excerpt = log_excerpt(self.config, replica) if code in ENGINE_ERRORS else ""
        observations.replica_crashed(replica=replica, code=code, message=message, log=excerpt)

    def _forget(self, replica_id: int) -> _Watched | None:
        watched = self._watched.pop(replica_id, None)
        if watched is not None and watched.process is not None and watched.process.poll() is None:
            self._unreaped.append(watched.process)
        return watched

    def _drain_all(self) -> None:
        alive = []
        for replica in replicas_held(self.id):
            identity = self._identity(replica)
            if identity is not None and identity.is_alive():
                observations.replica_draining(replica=replica, is_forced=True)
                identity.terminate()
                alive.append((replica, identity))
        deadline = time.monotonic() + self.timings.drain_seconds
        for replica, identity in alive:
            while identity.is_alive() and time.monotonic() < deadline:
                time.sleep(0.05)
            identity.kill()
            self._forget(replica.pk)
            observations.replica_ended(replica=replica)

    def _identity(self, replica: Replica) -> ProcessIdentity | None:
        """None if there is no process on this machine."""
        if replica.pid is None or replica.node not in ("", self.config.node_name):
            return None
        return ProcessIdentity(replica.pid, replica.process_started)


def _is_surplus(replica: Replica) -> bool:
    return replica.number >= replica.deployment.num_replicas


def _is_settled(replica: Replica) -> bool:
    return _should_run(replica) and replica.state in AVAILABLE and replica.generation == replica.deployment.generation


def _should_run(replica: Replica) -> bool:
    return replica.deployment.state in RUNNING_STATES and not _is_surplus(replica)
