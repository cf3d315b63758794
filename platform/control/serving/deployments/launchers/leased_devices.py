"""Leases a stated device for the engine of each replica, and ends the lease after the engine has ended.

The lease is taken before the engine is started, so a supervisor that dies in between leaves a lease without an engine,
and never an engine without a lease. The next supervisor of the machine gives the replica the same device again, or ends
the lease:

    the replica                                                    its lease
    has a process on this machine, according to its row            stays
    should run, and a supervisor of this machine holds its claim   stays, also during the back-off after a crash
    anything else, and a process of it still runs here             stays until the process has ended
    anything else                                                  is deleted
"""

from collections.abc import Iterable
from pathlib import Path

from django.db import transaction
from django.db.models import BooleanField, Case, Q, Value, When
from django.db.models.functions import Now

from control.core.settings.config import Config
from control.models.engines.planning import Purpose, Workload, memory_limit, memory_needed
from control.models.engines.schemas import EngineOptions
from control.queue.devices.endpoints import (
    EndpointClaim,
    endpoint_device_lease,
    endpoint_leases_adopt,
    endpoint_leases_end,
    endpoint_leases_on,
)
from control.queue.devices.models import Device, EndpointLease
from control.serving.deployments.launchers.engine_process import has_process, only_starter
from control.serving.deployments.launchers.interface import AlreadyRunning
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.states import RUNNING_STATES


def leases_devices(config: Config) -> bool:
    """Returns whether engines lease the devices that are stated. `endpoint_devices` names devices that need no lease.

    Otherwise Ray places the engines, or engines on CUDA get a device of their own (`launchers.devices`) and engines on
    the CPU share it.
    """
    return bool(config.devices) and config.endpoint_devices is None and config.launcher == "process"


def device_lease(config: Config, replica: Replica, speculator_dir: Path | None) -> Device:
    """Returns the device that the replica's next engine gets. Only one supervisor of a machine may call this at a time.

    Raises: NoDevice; AlreadyRunning: the replica's last process has not ended yet.
    """
    if has_process(config, str(replica)):
        raise AlreadyRunning(f"replica {replica.number} still has another process")
    deployment = replica.deployment
    claim = EndpointClaim(
        organization_id=deployment.organization_id,
        deployment_id=deployment.pk,
        replica=str(replica),
        fence=replica.fence,
        memory_needed=_memory_needed(config, deployment, speculator_dir),
        hardware=deployment.hardware,
    )
    with transaction.atomic():
        return endpoint_device_lease(claim)


def _memory_needed(config: Config, deployment: Deployment, speculator_dir: Path | None) -> dict[str, int]:
    options = EngineOptions.model_validate(deployment.engine or {})
    files = () if speculator_dir is None else speculator_dir.rglob("*.safetensors")
    workload = Workload(
        purpose=Purpose.ENDPOINT,
        base_model=deployment.base_model,
        adapters=list(deployment.adapters.all()),
        staged_speculator_bytes=sum(file.stat().st_size for file in files),
    )
    bound = config.endpoint_memory_bytes
    least = (bound if options.memory_share is None else memory_limit(options, bound)) or 0
    return {kind: max(size, least) for kind, size in memory_needed(options, workload).items()}


def leases_adopt(config: Config) -> None:
    """Leases the devices of engines that were started before the operators stated the devices, so without a lease."""
    with only_starter(config):
        leased = set(endpoint_leases_on(config.node_name).values_list("replica", flat=True))
        here = Replica.objects.exclude(pid=None).exclude(device="").filter(node__in=["", config.node_name])
        engines = {
            int(row.device): EndpointClaim(
                organization_id=row.deployment.organization_id,
                deployment_id=row.deployment_id,
                replica=str(row),
                fence=row.fence,
                memory_needed={},
            )
            for row in here.select_related("deployment")
            if row.device.isdigit() and str(row) not in leased
        }
        if engines:
            endpoint_leases_adopt(engines)


def unused_leases_end(config: Config) -> None:
    """Ends the leases on this machine's devices that their replicas no longer need (see the module's table)."""
    if not any(True for _ in _unneeded(config)):
        return
    with only_starter(config):  # from here on, no supervisor of this machine starts an engine
        ended = [lease for lease in _unneeded(config) if not has_process(config, lease.replica)]
        endpoint_leases_end(ended)


def _unneeded(config: Config) -> Iterable[EndpointLease]:
    leases = list(endpoint_leases_on(config.node_name))
    if not leases:
        return []
    is_claimed = Case(When(Q(lease_until__gt=Now()), then=Value(True)), default=False, output_field=BooleanField())
    deployments = {lease.deployment_id for lease in leases}
    rows = Replica.objects.filter(deployment__in=deployments).annotate(is_claimed=is_claimed)
    needed = {str(row) for row in rows.select_related("deployment") if _needs_device(row, config.node_name)}
    return [lease for lease in leases if lease.replica not in needed]


def _needs_device(row: Replica, node: str) -> bool:
    if row.has_process:
        return row.node in ("", node)
    deployment = row.deployment
    should_run = deployment.state in RUNNING_STATES and row.number < deployment.num_replicas
    is_claimed_here = row.is_claimed and row.supervisor.rsplit(":", 2)[0] == node  # type: ignore[attr-defined]
    return should_run and row.state != Replica.State.FAILED and is_claimed_here
