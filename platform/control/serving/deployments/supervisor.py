"""Makes processes match their rows in the database. `tick` never waits for a process, a probe or storage.

    desired   observed                        action of the supervisor
    running   no process was started          copy the files (stage) and launch, after the back-off of a crash
    running   the process has ended           record a crash: back off, or give up
    running   the process is of an older
              generation                      drain the process, then launch another
    running   the process is alive            probe it; record ready or degraded, or kill it if it hangs
    stopped   the process is alive            SIGTERM, later SIGKILL
    stopped   the process has ended           record stopped

The supervisor keeps no state that it could not rebuild: pid, start time, port and token are in the row, so the next
supervisor can adopt the process, which means to watch it without being its parent. For an adopted process, the next
supervisor creates a new `_Watched` (timers, handle of the child).
"""

import os
import signal
import subprocess
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog
from botocore.exceptions import BotoCoreError, ClientError
from django.db import DatabaseError
from django.utils import timezone

from control.core.processes.engine_homes import engine_homes_limit
from control.core.processes.engine_users import uid_range
from control.core.settings.config import Config
from control.core.storage.backends import StorageError
from control.serving.deployments import observations
from control.serving.deployments.devices import NoFreeDevice, device_for_engine
from control.serving.deployments.health import HealthWatch, engine_client
from control.serving.deployments.launcher import LaunchError, launch, stage
from control.serving.deployments.leftovers import delete, hide_unused
from control.serving.deployments.measuring import CounterSampler
from control.serving.deployments.metering import endpoint_meter
from control.serving.deployments.models import Deployment
from control.serving.deployments.processes import ProcessIdentity, endpoint_processes
from control.serving.deployments.selectors import deployment_sessions, deployments_to_supervise
from control.serving.deployments.staging_pool import StagingPool
from control.serving.deployments.states import State

log = structlog.get_logger(__name__)

NUM_PROBE_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorTimings:
    """Intervals and time limits of the supervisor."""

    probe_seconds: float = 1.0
    startup_seconds: float = 900.0  # until the first good health check: large models load for minutes
    hang_seconds: float = 60.0  # a process that was healthy is killed when its checks have failed for this time
    drain_seconds: float = 60.0  # between SIGTERM and SIGKILL
    failures_to_degrade: int = 3
    sample_seconds: float = 30.0  # between two reads of an engine's counters
    tidy_seconds: float = 60.0  # between two deletions of the files of deployments that have ended


@dataclass(slots=True)
class _Watched:
    """State of one deployment's process that is kept between two ticks."""

    identity: ProcessIdentity
    health: HealthWatch
    sampler: CounterSampler
    process: "subprocess.Popen[bytes] | None"  # None: adopted, so its exit code stays unknown
    drain_until: float | None = None

    def exit_message(self) -> str:
        code = self.process.poll() if self.process else None
        return "The engine ended." if code is None else f"The engine ended with code {code}."


class Supervisor:
    """Run only one supervisor per database: it sees processes on its own machine only, and takes all others for dead.

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
        self._watched: dict[str, _Watched] = {}
        self._staging: dict[tuple[str, int], Future[Path | None]] = {}
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._killed: list[tuple[ProcessIdentity, str]] = []  # with their devices
        self._staging_pool = StagingPool()
        self._probe_pool = ThreadPoolExecutor(max_workers=NUM_PROBE_THREADS, thread_name_prefix="probe")
        self._engine_client = engine_client()
        self._tidy_at = 0.0  # of the monotonic clock

    def kill_strays(self) -> None:
        """Kills endpoint processes that belong to a deployment but are not the process in its row.

        A supervisor that dies between launching a process and recording it leaves such a process behind.
        """
        recorded = deployment_sessions()
        for pid, deployment_id in endpoint_processes().items():
            try:
                session = os.getsid(pid)
                if deployment_id in recorded and session != recorded[deployment_id]:
                    log.warning("killing a stray endpoint", deployment=deployment_id, pid=pid)
                    os.killpg(session, signal.SIGKILL)
            except ProcessLookupError:
                continue  # the process has ended meanwhile

    def tick(self) -> None:
        self.reap()
        rows = list(deployments_to_supervise())
        for deployment in rows:
            ids = {"deployment_id": deployment.pk, "organization_id": deployment.organization_id}
            try:
                with structlog.contextvars.bound_contextvars(**ids):
                    self._reconcile(deployment)
            except DatabaseError:
                raise  # affects all deployments
            except Exception:  # boundary: an error in one deployment must not stop the others
                log.exception("could not reconcile", deployment=deployment.pk)
        for gone in self._watched.keys() - {deployment.pk for deployment in rows}:
            self._forget(gone)
        wanted = {(deployment.pk, deployment.generation) for deployment in rows}
        for key in self._staging.keys() - wanted:
            self._staging.pop(key).cancel()
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + self.timings.tidy_seconds
            self._probe_pool.submit(self._limit_homes)
            self._probe_pool.submit(delete, hide_unused(self.config, {deployment.pk for deployment in rows}))

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
        self._staging_pool.shutdown()
        self._probe_pool.shutdown(wait=False, cancel_futures=True)

    def _reconcile(self, deployment: Deployment) -> None:
        identity = _identity(deployment)
        if identity is None or not identity.is_alive():
            self._without_process(deployment)
            return
        watched = self._watch(deployment, identity)
        endpoint_meter(deployment=deployment)
        if deployment.state == State.STOPPING or deployment.observed_generation != deployment.generation:
            self._drain(deployment, watched)
        else:
            self._check(deployment, watched)

    def _without_process(self, deployment: Deployment) -> None:
        watched = self._forget(deployment.pk)
        if deployment.state == State.STOPPING:
            observations.deployment_stopped(deployment=deployment)
        elif deployment.pid is not None and deployment.observed_generation != deployment.generation:
            observations.deployment_drained(deployment=deployment)
        elif deployment.pid is not None:
            message = watched.exit_message() if watched else "The engine ended while no supervisor was running."
            self._crashed(deployment, "engine_exited", message)
        elif deployment.not_before is None or deployment.not_before <= timezone.now():
            self._launch(deployment)

    def _launch(self, deployment: Deployment) -> None:
        key = (deployment.pk, deployment.generation)
        if key not in self._staging:
            self._staging[key] = self._staging_pool.submit(
                deployment.organization_id, partial(stage, self.config, deployment)
            )
        if not self._staging[key].done():
            return
        staged = self._staging.pop(key)
        try:
            speculator_dir = staged.result()
            device = device_for_engine(self.config, ending=self._devices_of_killed())
            endpoint = launch(
                self.config, deployment, device=device, speculator_dir=speculator_dir, lifeline=self.lifeline
            )
        except (StorageError, ClientError, BotoCoreError, OSError) as error:
            log.warning("speculator not staged", deployment=deployment.pk, error=str(error))
            self._crashed(deployment, "speculator_unavailable", "The speculator could not be read from storage.")
            return
        except NoFreeDevice as error:
            self._crashed(deployment, "no_free_device", f"The endpoint needs a device, but {error}.")
            return
        except LaunchError as error:
            self._crashed(deployment, "launch_failed", str(error))
            return
        if not observations.deployment_launched(
            deployment=deployment,
            pid=endpoint.identity.pid,
            process_started=endpoint.identity.started,
            port=endpoint.port,
            token=endpoint.token,
            device=device,
        ):
            endpoint.identity.kill()
            self._killed.append((endpoint.identity, device))
            self._unreaped.append(endpoint.process)
            return
        log.info("endpoint launched", deployment=deployment.pk, name=deployment.name, pid=endpoint.identity.pid)
        self._watched[deployment.pk] = self._new_watch(endpoint.identity, endpoint.process)

    def _devices_of_killed(self) -> list[str]:
        """Devices of killed processes that have not ended yet. Their rows no longer name them."""
        self._killed = [(identity, device) for identity, device in self._killed if identity.is_alive()]
        return [device for _, device in self._killed]

    def _watch(self, deployment: Deployment, identity: ProcessIdentity) -> _Watched:
        watched = self._watched.get(deployment.pk)
        if watched is None or watched.identity != identity:
            log.info("endpoint adopted", deployment=deployment.pk, name=deployment.name, pid=identity.pid)
            watched = self._watched[deployment.pk] = self._new_watch(identity, None)
        return watched

    def _new_watch(self, identity: ProcessIdentity, process: "subprocess.Popen[bytes] | None") -> _Watched:
        health = HealthWatch(interval_seconds=self.timings.probe_seconds)
        return _Watched(identity, health, CounterSampler(self.timings.sample_seconds), process)

    def _drain(self, deployment: Deployment, watched: _Watched) -> None:
        now = time.monotonic()
        if watched.drain_until is None:
            if deployment.state != State.STOPPING:
                observations.deployment_draining(deployment=deployment)
            watched.drain_until = now + self.timings.drain_seconds
            watched.identity.terminate()
        elif now >= watched.drain_until:
            watched.identity.kill()

    def _check(self, deployment: Deployment, watched: _Watched) -> None:
        assert deployment.port is not None
        if deployment.state == State.READY:
            watched.sampler.poll(self._probe_pool, self._engine_client, deployment)
        healthy = watched.health.poll(self._probe_pool, self._engine_client, deployment.port, deployment.token)
        if healthy:
            if observations.deployment_observe(deployment=deployment, healthy=True):
                log.info("endpoint ready", deployment=deployment.pk, name=deployment.name)
            return
        if healthy is False and watched.health.failures >= self.timings.failures_to_degrade:
            observations.deployment_observe(deployment=deployment, healthy=False)
        starting = deployment.state == State.PROVISIONING
        limit = self.timings.startup_seconds if starting else self.timings.hang_seconds
        if watched.health.unhealthy_seconds > limit:
            watched.identity.kill()
            self._killed.append((watched.identity, deployment.device))
            self._forget(deployment.pk)
            code = "startup_timeout" if starting else "engine_hung"
            self._crashed(deployment, code, f"The engine could not generate a token for {limit:.0f} s.")

    def _crashed(self, deployment: Deployment, code: str, message: str) -> None:
        log.warning("endpoint crashed", deployment=deployment.pk, name=deployment.name, code=code, error=message)
        observations.deployment_crashed(deployment=deployment, code=code, message=message)

    def _forget(self, deployment_id: str) -> _Watched | None:
        watched = self._watched.pop(deployment_id, None)
        if watched is not None and watched.process is not None and watched.process.poll() is None:
            self._unreaped.append(watched.process)
        return watched

    def _drain_all(self) -> None:
        alive = []
        for deployment in deployments_to_supervise():
            identity = _identity(deployment)
            if identity is not None and identity.is_alive():
                self._drain(deployment, self._watch(deployment, identity))
                alive.append((deployment, identity))
        deadline = time.monotonic() + self.timings.drain_seconds
        for deployment, identity in alive:
            while identity.is_alive() and time.monotonic() < deadline:
                time.sleep(0.05)
            identity.kill()
            self._forget(deployment.pk)
            if deployment.state == State.STOPPING:
                observations.deployment_stopped(deployment=deployment)
            else:
                observations.deployment_drained(deployment=deployment)


def _identity(deployment: Deployment) -> ProcessIdentity | None:
    return None if deployment.pid is None else ProcessIdentity(deployment.pid, deployment.process_started)
