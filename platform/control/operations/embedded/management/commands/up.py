"""`manage.py up`: runs the whole stack on this machine until Ctrl-C or SIGTERM.

No process is left behind, not even after `kill -9`. As soon as the stack serves requests, `ready.json` in the data
folder contains its address.
"""

import fcntl
import os
import signal
import socket
import threading
from argparse import ArgumentParser, ArgumentTypeError
from contextlib import closing
from pathlib import Path
from typing import IO, Any

import httpx2
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from control.core.api.errors import ApiError
from control.core.processes.ports import free_port
from control.core.settings.config import Config, get_config
from control.models.catalog.services import base_model_register
from control.operations.embedded.first_start import ADMINISTRATOR, Credentials, Ready, first_start
from control.operations.embedded.local_ray import LocalRay, engines_of_ended_cluster_forget, reason_against
from control.operations.embedded.stack import ClusterNotStarted, Stack, wait_until
from control.queue.jobs.models import Worker
from control.tenants.row_security.scope import Across, across_tenants

START_SECONDS = 90.0
WATCH_SECONDS = 0.25
WORKER_ROLES = {"jobs", "deployments"}


class Command(BaseCommand):
    help = "Runs the whole stack: API, console, queue, job worker and endpoint supervisor. Ctrl-C stops all of it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1")
        parser.add_argument("--port", type=int, default=8000, help="0 selects a free port.")
        parser.add_argument(
            "--model", dest="models", type=_model, action="append", default=[], metavar="NAME=DIR",
            help="Registers a folder of safetensors as a model under this name. Can be repeated.",
        )  # fmt: skip
        parser.add_argument(
            "--cluster", type=int, nargs="?", const=2, metavar="NODES",
            help="Runs the engines on a small Ray cluster on this machine. Default number of nodes: 2.",
        )  # fmt: skip

    def handle(self, **options: Any) -> None:
        ended = _end_on_signal()
        if (num_nodes := options["cluster"]) is not None and (reason := reason_against(num_nodes)) is not None:
            raise CommandError(reason)
        config = get_config()
        config = config.model_copy(update={"data_dir": config.data_dir.resolve()})
        with closing(_lock(config.data_dir / "up.lock")):
            ready_path = config.data_dir / "ready.json"
            ready_path.unlink(missing_ok=True)
            _checked_port(options["host"], options["port"])  # reports an error before migrations, which take seconds
            call_command("migrate", interactive=False, verbosity=0)
            with across_tenants(Across.COMMAND):
                credentials = first_start(config.data_dir / "credentials.json")
                _register(options["models"])
                engines_of_ended_cluster_forget()
            cluster = None if num_nodes is None else LocalRay.prepare(config, num_nodes=num_nodes)
            try:
                self._serve(config, credentials, ready_path, ended, options["host"], options["port"], cluster)
            finally:
                ready_path.unlink(missing_ok=True)

    def _serve(
        self,
        config: Config,
        credentials: Credentials,
        ready_path: Path,
        ended: threading.Event,
        host: str,
        port: int,
        cluster: LocalRay | None,
    ) -> None:
        port = _checked_port(host, port)
        stack = Stack(config, host=host, port=port, cluster=cluster)
        began = timezone.now()
        try:
            stack.start()
            ready = Ready(
                pid=os.getpid(),
                url=f"http://{_reachable(host)}:{port}",
                admin_url=f"http://{_reachable(host)}:{port}/admin/",
                api_key=credentials.api_key,
            )
            if not wait_until(lambda: ended.is_set() or _is_ready(ready.url, began), seconds=START_SECONDS):
                raise CommandError(f"not ready within {START_SECONDS:.0f} s; see {config.data_dir / 'logs'}")
            if not ended.is_set():
                ready.write(ready_path)
                self._announce(ready, credentials)
                if cluster is not None:
                    self.stdout.write(f"  Ray       {cluster.address}, {cluster.num_nodes} nodes for engines")
                    self.stdout.flush()
            while not ended.wait(WATCH_SECONDS):
                stack.watch()
            ready_path.unlink(missing_ok=True)
            self.stdout.write("Stopping ...")
            stack.stop()
        except ClusterNotStarted as error:
            raise CommandError(str(error)) from error
        finally:
            stack.cut_lifeline()

    def _announce(self, ready: Ready, credentials: Credentials) -> None:
        lines = [f"Slipstream is ready.  API {ready.url}/v1  Console {ready.admin_url}"]
        if credentials.admin_password is not None:
            lines += [
                f"  user      {ADMINISTRATOR}",
                f"  password  {credentials.admin_password}   (shown this once)",
                f"  API key   {credentials.api_key}   (kept in credentials.json of the data folder)",
            ]
        else:
            lines.append("  API key   in credentials.json of the data folder")
        self.stdout.write("\n".join(lines))
        self.stdout.flush()


def _model(text: str) -> tuple[str, Path]:
    name, separator, folder = text.partition("=")
    if not (name and separator and folder):
        raise ArgumentTypeError(f"must be NAME=DIR, got {text!r}")
    return name, Path(folder)


def _end_on_signal() -> threading.Event:
    """The first signal sets the event, so that the stack stops in order. The second one kills this process; the other
    processes then end because the lifeline closes.
    """
    ended = threading.Event()

    def handle(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)
    return ended


def _lock(path: Path) -> IO[str]:
    """Locks the data folder, because two stacks on one folder would run each other's jobs.

    The kernel releases the lock of a process that is killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        holder = lock.read().strip()
        lock.close()
        raise CommandError(f"another `up` (pid {holder}) serves the data folder {path.parent}") from error
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _register(models: list[tuple[str, Path]]) -> None:
    for name, folder in models:
        try:
            base_model_register(name=name, path=folder)
        except ApiError as error:
            raise CommandError(f"--model {name}={folder}: {error.message}") from error


def _checked_port(host: str, port: int) -> int:
    """Replaces port 0 by a free port.

    Raises: CommandError: the port is not available. Without this check, the API process would fail again and again,
        and only its log would say so.
    """
    try:
        if port == 0:
            return free_port(host)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise CommandError(f"can't listen on {host}:{port}: {error.strerror}; choose another --port") from error
    except OverflowError as error:
        raise CommandError(f"--port must be in 0..65535, got {port}") from error
    return port


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host  # noqa: S104  # compared, not bound


def _is_ready(url: str, began: object) -> bool:
    """Whether the API answers and both workers have reported since this start."""
    try:
        if httpx2.get(f"{url}/health", trust_env=False, timeout=5.0).status_code != 200:
            return False
    except httpx2.HTTPError:
        return False
    roles = Worker.objects.filter(heartbeat_at__gte=began).values_list("role", flat=True)
    return set(roles) >= WORKER_ROLES
