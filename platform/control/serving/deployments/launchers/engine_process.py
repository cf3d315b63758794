"""Starts the engine's server as a separate process, with its own session, log, free port and random token.

The process outlives the supervisor unless a lifeline is given. A lifeline is a pipe whose write end belongs to another
process, the owner. An engine's process with a lifeline ends when the owner ends.
"""

import fcntl
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import structlog
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings

from control.core.processes.child_environment import child_environment
from control.core.processes.engine_homes import use_home
from control.core.processes.engine_users import EngineUser, NoFreeUser, engine_user, make_model_readable
from control.core.processes.in_use import open_in_use
from control.core.processes.ports import free_port
from control.core.settings.config import LOOPBACK, Config, get_config
from control.core.storage.backends import StorageError
from control.models.catalog.artifacts import artifact_folder
from control.models.catalog.cache import copy_folder, use_copy, use_if_copy
from control.models.catalog.folder import UnusableModel
from control.models.catalog.sources import model_folder
from control.models.engines.drafting import drafter_name
from control.models.engines.planning import memory_limit
from control.models.engines.schemas import EngineOptions
from control.serving.deployments.engine_tls import KEY_VARIABLE, engine_key
from control.serving.deployments.launchers.devices import DEVICES_VARIABLE, engine_device
from control.serving.deployments.launchers.interface import AlreadyRunning, LaunchError
from control.serving.deployments.launchers.processes import (
    ACTOR_NAME_VARIABLE,
    NAME_VARIABLE,
    ProcessIdentity,
    process_started,
)
from control.serving.deployments.models import Deployment, Replica
from workers.parent_death import kept_command, unprivileged
from workers.planning import DEFAULT_CONCURRENCY

log = structlog.get_logger(__name__)

PROJECT_ROOT = Path(__file__).resolve().parents[5]
MAX_EXCERPT_BYTES = 2000
TOKEN_VARIABLE = "SLIPSTREAM_ENGINE_TOKEN"  # noqa: S105  # the variable's name
OPERATOR_TOKEN_VARIABLE = "SLIPSTREAM_ENGINE_OPERATOR_TOKEN"  # noqa: S105

STAGING_ERRORS = (StorageError, ClientError, BotoCoreError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An engine process that has been started, and how to reach it."""

    identity: ProcessIdentity
    process: "subprocess.Popen[bytes]"  # the caller must reap it
    port: int
    token: str
    operator_token: str
    certificate: str  # in PEM; empty: the engine does not use TLS


def log_path(config: Config, deployment_id: str, number: int = 0) -> Path:
    """Returns the path of the log of a replica's engine. Args: number: the replica's number."""
    name = f"{deployment_id}-{number}" if number else deployment_id
    return config.data_dir / "logs" / "deployments" / f"{name}.log"


def stage(config: Config, deployment: Deployment) -> Path | None:
    """Copies the model, the adapters and the speculator to this machine, unless this has been done before.

    The related rows must have been read: this runs in threads that make no database queries.

    Returns: the speculator's folder. Raises: any of `STAGING_ERRORS`.
    """
    with suppress(UnusableModel):  # `launch` reports the error
        model_folder(deployment.base_model)
    for adapter in deployment.adapters.all():
        artifact_folder(adapter.pk, adapter.storage_prefix)
    speculator = deployment.speculator
    return None if speculator is None else artifact_folder(speculator.pk, speculator.artifact_prefix)


def start_for_actor(replica: Replica, *, device: str, host: str, lifeline: int, uses_tls: bool) -> Endpoint:
    """Copies the files and starts the engine process on the machine of a Ray actor. The actor must end the process.

    Args: see `launch`. Raises: LaunchError.
    """
    config = get_config()
    try:
        speculator_dir = stage(config, replica.deployment)
    except STAGING_ERRORS as error:
        raise not_staged(replica.deployment, error) from error
    return launch(
        config,
        replica,
        device=device,
        speculator_dir=speculator_dir,
        lifeline=lifeline,
        host=host,
        uses_tls=uses_tls,
        name_variable=ACTOR_NAME_VARIABLE,
    )


def not_staged(deployment: Deployment, error: Exception) -> LaunchError:
    """Returns the error of a launch whose files could not be copied."""
    log.warning("speculator not staged", deployment=deployment.pk, error=str(error))
    return LaunchError("The speculator could not be read from storage.", code="speculator_unavailable")


def launch(
    config: Config,
    replica: Replica,
    *,
    device: str,
    speculator_dir: Path | None,
    lifeline: int | None,
    device_kind: str | None = None,
    host: str | None = None,
    uses_tls: bool = False,
    name_variable: str = NAME_VARIABLE,
) -> Endpoint:
    """Starts the engine process of a replica.

    Args:
        device: the CUDA devices that the engine sees; empty: it sees none.
        device_kind: the engine's argument `--device`; None: it follows from `device`.
        host: the address on which the engine listens; None: it follows from `SLIPSTREAM_ENGINE_HOST`.
    Raises: LaunchError: the model is not available, the program cannot be run, or the process ended at once;
        AlreadyRunning.
    """
    deployment = replica.deployment
    port = free_port(host or LOOPBACK)
    token, operator_token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
    variables = {name_variable: process_name(replica), TOKEN_VARIABLE: token, OPERATOR_TOKEN_VARIABLE: operator_token}
    key = engine_key() if uses_tls else None
    if key is not None:
        variables[KEY_VARIABLE] = key.key_and_certificate
    with _uses(config, deployment) as used:  # from here on, the copies of the files are not deleted
        try:
            kind = engine_device(config, device) if device_kind is None else device_kind
            command = _command(config, deployment, device=kind, host=host, port=port, speculator_dir=speculator_dir)
            user = _prepare_user(config, deployment)
        except UnusableModel as error:
            raise LaunchError(f"the model is not available: {error.message}") from error
        except NoFreeUser as error:
            raise LaunchError(str(error)) from error
        users_own = {} if user is None else user.environment()
        home_use = nullcontext() if user is None else use_home(user)
        with (
            home_use as home,
            _only_process_of(config, replica) as only,
            open_in_use(log_path(config, deployment.pk, replica.number)) as output,
        ):
            process = _start_process(
                command,
                environment={**child_environment(), **users_own, DEVICES_VARIABLE: device, **variables},
                uid=None if user is None else user.uid,
                lifeline=lifeline,
                output=output,
                inherited=[*used, only] if home is None else [*used, home, only],
            )
    return Endpoint(
        identity=_identity_of(process),
        process=process,
        port=port,
        token=token,
        operator_token=operator_token,
        certificate="" if key is None else key.certificate,
    )


def _identity_of(process: "subprocess.Popen[bytes]") -> ProcessIdentity:
    """Raises: LaunchError: the process has ended."""
    started = process_started(process.pid)
    if started is None:
        raise LaunchError(f"the engine ended at once with code {process.wait()}")
    return ProcessIdentity(process.pid, started)


@contextmanager
def _uses(config: Config, deployment: Deployment) -> Iterator[list[IO[bytes]]]:
    """Marks the copies of the deployment's files as in use, and yields the lock files that its engine must inherit.

    Raises: LaunchError: a copy has been deleted since it was made.
    """
    artifacts = [copy_folder(config, artifact_id) for artifact_id in _artifact_ids(deployment)]
    with ExitStack() as opened:
        model_use = use_if_copy(config, copy_folder(config, deployment.base_model.pk))
        used = [use_copy(folder) for folder in artifacts] + ([] if model_use is None else [model_use])
        for file in used:
            opened.enter_context(file)
        if not all(folder.is_dir() for folder in artifacts):
            raise LaunchError("The copy of the speculator or of an adapter was deleted.", code="speculator_unavailable")
        yield used


def _artifact_ids(deployment: Deployment) -> list[str]:
    speculator = deployment.speculator
    return [adapter.pk for adapter in deployment.adapters.all()] + ([] if speculator is None else [speculator.pk])


def _start_process(
    command: list[str],
    *,
    environment: Mapping[str, str],
    uid: int | None,
    lifeline: int | None,
    output: IO[bytes],
    inherited: Sequence[IO[bytes]],
) -> subprocess.Popen[bytes]:
    """Starts the program. Args: inherited: locked files, which stay locked until the process ends.

    Raises: LaunchError: the program cannot be run.
    """
    try:
        return subprocess.Popen(
            unprivileged(command, uid=uid) if lifeline is None else kept_command(command, lifeline=lifeline, uid=uid),
            cwd=PROJECT_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=[*([] if lifeline is None else [lifeline]), *(file.fileno() for file in inherited)],
        )
    except OSError as error:
        raise LaunchError(f"{command[0]} could not be started: {error}") from error


def log_excerpt(config: Config, replica: Replica) -> str:
    """Returns the end of the engine's log; empty if the log is not on this machine."""
    try:
        with log_path(config, replica.deployment_id, replica.number).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_EXCERPT_BYTES))
            return log.read(MAX_EXCERPT_BYTES).decode(errors="replace").replace("\0", "")  # PostgreSQL stores no NUL
    except FileNotFoundError:
        return ""


@contextmanager
def only_starter(config: Config) -> Iterator[None]:
    """Lets the supervisors of this machine start engines in turn, so that no two of them choose the same device."""
    config.data_dir.mkdir(parents=True, exist_ok=True)
    with (config.data_dir / "launch.lock").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def process_name(replica: Replica) -> str:
    """Returns the name of the process that is started for the current generation of the deployment."""
    return replica.process_name(replica.deployment.generation)


def _only_process_of(config: Config, replica: Replica) -> IO[bytes]:
    """Returns a locked file, which the process inherits, so that the kernel releases the lock when the process ends.

    Raises: AlreadyRunning.
    """
    file = _locked(config, str(replica))
    if file is None:
        raise AlreadyRunning(f"replica {replica.number} still has another process")
    return file


def has_process(config: Config, replica: str) -> bool:
    """Returns whether a process of the replica runs on this machine, even if no row records the process.

    Call this only in a block of `only_starter`, because the check takes the process's lock for a moment.
    """
    file = _locked(config, replica)
    if file is None:
        return True
    file.close()
    return False


def _locked(config: Config, replica: str) -> IO[bytes] | None:
    """Locks the file of a replica and returns it; None if a process holds the lock. Args: replica: its name."""
    path = config.data_dir / "replicas" / f"{replica}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _prepare_user(config: Config, deployment: Deployment) -> EngineUser | None:
    """Returns the user of the engine, after giving it access to the files that the engine reads."""
    user = engine_user(config, deployment.organization_id)
    if user is not None:
        base_model = deployment.base_model
        model = model_folder(base_model, may_fetch=False)
        make_model_readable(config, model, owner_id=base_model.organization_id)
        for artifact_id in _artifact_ids(deployment):
            make_model_readable(config, copy_folder(config, artifact_id), owner_id=deployment.organization_id)
    return user


def _command(
    config: Config, deployment: Deployment, *, device: str, host: str | None, port: int, speculator_dir: Path | None
) -> list[str]:
    program: list[str] = getattr(settings, "SLIPSTREAM_ENGINE_COMMAND", [sys.executable, "-m", "engine.server"])
    options = EngineOptions.model_validate(deployment.engine or {})
    arguments = {
        "--model-dir": str(model_folder(deployment.base_model, may_fetch=False)),  # `stage` has fetched it
        "--model-name": deployment.served_name,
        "--host": host or _listening_host(config),
        "--port": str(port),
        "--drain-seconds": "3600",  # the supervisor ends an engine that drains for longer than its own limit
        "--device": device,
        **_engine_arguments(config, options),
    }
    speculator = None if speculator_dir is None else deployment.speculator
    if (drafter := drafter_name(options, speculator)) is not None:
        arguments["--drafter"] = drafter
    if speculator is not None and speculator_dir is not None:
        arguments["--speculator-dir"] = str(speculator_dir.resolve())
    words = [word for pair in arguments.items() for word in pair]
    for adapter in deployment.adapters.all():
        folder = copy_folder(config, adapter.pk)
        words += ["--adapter", f"{adapter.model_name(deployment.served_name)}={folder}"]
    return [*program, *words]


def _listening_host(config: Config) -> str:
    return LOOPBACK if config.engine_host == LOOPBACK else "0.0.0.0"  # noqa: S104  # for gateways on other hosts


def _engine_arguments(config: Config, options: EngineOptions) -> dict[str, str]:
    """Returns the arguments that follow from a deployment's engine options.

    `memory_share` is a share of the memory that operators allow an endpoint, or else of the device's memory.
    """
    bound = config.endpoint_memory_bytes
    arguments = {
        "--weights": options.weights,
        "--kv-dtype": options.kv_dtype,
        "--max-batch-size": DEFAULT_CONCURRENCY if options.max_concurrency is None else options.max_concurrency,
        "--max-seq-len": options.max_context,
        "--draft-budget": options.draft_budget,
        "--memory-bytes": bound if options.memory_share is None else memory_limit(options, bound),
        "--memory-share": options.memory_share if bound is None else None,
    }
    return {name: str(value) for name, value in arguments.items() if value is not None}
