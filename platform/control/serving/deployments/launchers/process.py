"""The launcher `process`: each engine is a process of this machine, on a device of its own.

If devices are stated, each engine leases one of them (`leased_devices`).

The row holds the process's pid and start time. The next supervisor of this machine can therefore watch the process
without being its parent.
"""

import os
import signal
import subprocess
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog
from django.db.models import prefetch_related_objects

from control.core.processes.engine_homes import engine_homes_limit
from control.core.settings.config import Config
from control.queue.devices.endpoints import NoDevice
from control.queue.devices.leases import visible_devices
from control.serving.deployments.launchers.devices import NoFreeDevice, device_for_engine, hardware_require
from control.serving.deployments.launchers.engine_process import (
    STAGING_ERRORS,
    launch,
    log_excerpt,
    not_staged,
    only_starter,
    stage,
)
from control.serving.deployments.launchers.interface import AlreadyRunning, DeviceWait, Ended, Record
from control.serving.deployments.launchers.leased_devices import device_lease, leases_devices, unused_leases_end
from control.serving.deployments.launchers.leftovers import delete, hide_unused
from control.serving.deployments.launchers.processes import ProcessIdentity, endpoint_processes
from control.serving.deployments.launchers.staging_pool import StagingPool
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.selectors import deployments_to_supervise, replicas_not_stray

log = structlog.get_logger(__name__)


class ProcessLauncher:
    """Args: supervisor: the id of the supervisor; lifeline: see `engine_process`."""

    name = "process"
    drains_with_supervisor = True

    def __init__(self, config: Config, *, supervisor: str, lifeline: int | None) -> None:
        self.config = config
        self.lifeline = lifeline
        self._supervisor = supervisor
        self._staging: dict[tuple[str, int], Future[Path | None]] = {}  # by deployment and its generation
        self._children: dict[int, tuple[ProcessIdentity, subprocess.Popen[bytes]]] = {}  # by replica
        self._unreaped: list[subprocess.Popen[bytes]] = []
        self._killed: dict[ProcessIdentity, str] = {}  # maps killed processes to their devices
        self._staging_pool = StagingPool()
        self._tidy_pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tidy")

    def ensure(self, replica: Replica, record: Record) -> bool:
        deployment = replica.deployment
        key = (deployment.pk, deployment.generation)
        if key not in self._staging:
            prefetch_related_objects([deployment], "adapters", "speculator__base_speculator")  # for `stage`
            self._staging[key] = self._staging_pool.submit(
                deployment.organization_id, partial(stage, self.config, deployment)
            )
        if not self._staging[key].done():
            return False
        staged = self._staging.pop(key)
        try:
            with only_starter(self.config):
                return self._start(replica, staged.result(), record)
        except STAGING_ERRORS as error:
            raise not_staged(deployment, error) from error
        except NoFreeDevice as error:
            raise DeviceWait(f"The endpoint needs a device, but {error}.", code="no_free_device") from error
        except NoDevice as error:
            raise DeviceWait(str(error), code=error.code) from error
        except AlreadyRunning:
            self.kill_strays()
            raise

    def _start(self, replica: Replica, speculator_dir: Path | None, record: Record) -> bool:
        """Launches and records the replica's process. Raises: NoFreeDevice; NoDevice; LaunchError."""
        facts: dict[str, object] = {"device_kind": "", "hour_nanousd": None}
        device_kind = None
        if leases_devices(self.config):
            leased = device_lease(self.config, replica, speculator_dir)
            device = visible_devices(leased) or ""
            # The device's number is dropped (`cuda:1` becomes `cuda`), because the engine sees only the leased device.
            device_kind = "cpu" if leased.kind == "cpu" else self.config.device.partition(":")[0]
            facts = {"device_kind": leased.kind, "hour_nanousd": leased.hour_nanousd}
        else:
            hardware_require(self.config, replica.deployment.hardware)
            device = device_for_engine(self.config, ending=self._devices_of_killed())
        endpoint = launch(
            self.config,
            replica,
            device=device,
            device_kind=device_kind,
            speculator_dir=speculator_dir,
            lifeline=self.lifeline,
        )
        is_recorded = record(
            node=self.config.node_name,
            device=device,
            host=self.config.engine_host,
            port=endpoint.port,
            token=endpoint.token,
            operator_token=endpoint.operator_token,
            pid=endpoint.identity.pid,
            process_started=endpoint.identity.started,
            **facts,
        )
        if is_recorded:
            self._forget(replica.pk)
            self._children[replica.pk] = (endpoint.identity, endpoint.process)
        else:
            endpoint.identity.kill()
            self._killed[endpoint.identity] = device
            self._unreaped.append(endpoint.process)
        return is_recorded

    def _devices_of_killed(self) -> Collection[str]:
        """Devices of killed processes that have not ended yet. The replicas' rows no longer name these devices."""
        self._killed = {identity: device for identity, device in self._killed.items() if identity.is_alive()}
        return self._killed.values()

    def observe(self, replica: Replica) -> Ended | None:
        identity = self._identity(replica)
        if identity is None:
            return Ended("node_lost", "The machine of the engine does not answer any more.")
        if identity.is_alive():
            return None
        child, process = self._children.get(replica.pk, (None, None))
        if process is None or child != identity:
            return Ended("engine_exited", "The engine ended while no supervisor was running.")
        code = process.poll()
        return Ended("engine_exited", "The engine ended." if code is None else f"The engine ended with code {code}.")

    def drain(self, replica: Replica) -> None:
        if (identity := self._identity(replica)) is not None:
            identity.terminate()

    def delete(self, replica: Replica) -> None:
        if (identity := self._identity(replica)) is not None:
            identity.kill()
            self._killed[identity] = replica.device

    def logs(self, replica: Replica) -> str:
        return log_excerpt(self.config, replica)

    def retain(self, held: Collection[Replica]) -> None:
        for gone in self._children.keys() - {replica.pk for replica in held}:
            self._forget(gone)
        wanted = {(replica.deployment_id, replica.deployment.generation) for replica in held}
        for key in self._staging.keys() - wanted:
            self._staging.pop(key).cancel()
        self._unreaped = [process for process in self._unreaped if process.poll() is None]  # collects zombies
        unused_leases_end(self.config)

    def kill_strays(self) -> None:
        names = endpoint_processes()  # read before the rows, so that the rows are at least as new
        known = set(Deployment.objects.values_list("pk", flat=True))
        sessions, of_others = replicas_not_stray(self._supervisor, self.config.node_name)
        for pid, name in names.items():
            replica = name.rpartition("-")[0]
            try:
                session = os.getsid(pid)
                if replica.rpartition("-")[0] in known and session not in sessions and replica not in of_others:
                    log.warning("killing a stray endpoint", replica=name, pid=pid)
                    os.killpg(session, signal.SIGKILL)
            except ProcessLookupError:
                continue  # the process has ended meanwhile

    def tidy(self) -> None:
        self._tidy_pool.submit(self._limit_homes)
        in_use = deployments_to_supervise().values_list("pk", flat=True)
        self._tidy_pool.submit(delete, hide_unused(self.config, set(in_use)))

    def close(self) -> None:
        unused_leases_end(self.config)
        self._staging_pool.shutdown()
        self._tidy_pool.shutdown(wait=False, cancel_futures=True)

    def _limit_homes(self) -> None:
        try:
            engine_homes_limit(self.config)
        except OSError:
            log.exception("could not limit the homes of engines")

    def _forget(self, replica_id: int) -> None:
        """Stops watching the replica's child process. `retain` reaps the process, so that it does not stay a zombie."""
        _, process = self._children.pop(replica_id, (None, None))
        if process is not None and process.poll() is None:
            self._unreaped.append(process)

    def _identity(self, replica: Replica) -> ProcessIdentity | None:
        """Returns None if the replica has no process on this machine."""
        if replica.pid is None or replica.node not in ("", self.config.node_name):
            return None
        return ProcessIdentity(replica.pid, replica.process_started)
