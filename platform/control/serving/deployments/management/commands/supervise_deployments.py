"""`manage.py supervise_deployments`: starts, checks, restarts and stops the endpoint processes of this machine."""

import signal
import threading
import time
from argparse import ArgumentParser
from typing import Any

import structlog
from django.core.management.base import BaseCommand
from django.db import DatabaseError, close_old_connections

from control.core.observability.listener import listen
from control.core.processes.log_files import logs_limit
from control.core.settings.config import get_config
from control.models.catalog.cache import model_copies_limit
from control.queue.devices.services import (
    endpoint_devices_register,
    endpoint_devices_renew,
    endpoint_devices_withdraw,
)
from control.queue.jobs.services import worker_beat, worker_leave
from control.serving.deployments.launchers.leased_devices import leases_adopt, leases_devices
from control.serving.deployments.supervisor import Supervisor, SupervisorTimings
from control.tenants.row_security.scope import Across, across_tenants

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.25  # the end of a process is noticed within two seconds, even if a tick is slow
BEAT_SECONDS = 10.0
HANGING_SECONDS = 120.0  # the liveness probe fails when the current tick has taken longer than this


class Command(BaseCommand):
    help = "Starts, checks, restarts and stops endpoints on this machine. Any number of supervisors may run."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--drain-seconds", type=float, default=SupervisorTimings().drain_seconds)
        parser.add_argument(
            "--lifeline",
            type=int,
            default=None,
            help="File descriptor of a pipe. The endpoints end when the process that holds its write end ends.",
        )
        parser.add_argument(
            "--drain", action="store_true", help="SIGTERM also ends the endpoints, once their requests are answered."
        )

    def handle(self, **options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        config = get_config()
        with across_tenants(Across.SUPERVISION):
            timings = SupervisorTimings(drain_seconds=options["drain_seconds"])
            supervisor = Supervisor(config, timings=timings, lifeline=options["lifeline"], drains=options["drain"])
            _supervise(supervisor, stop)


def _supervise(supervisor: Supervisor, stop: threading.Event) -> None:
    worker, next_beat = f"supervisor@{supervisor.id}", 0.0
    is_leasing = leases_devices(supervisor.config)
    ticked_at = time.monotonic()
    listen(lambda: time.monotonic() - ticked_at < HANGING_SECONDS)
    if is_leasing:  # before the first replica looks for a device
        endpoint_devices_register()
        leases_adopt(supervisor.config)
    supervisor.kill_strays()
    while not stop.wait(TICK_SECONDS):
        ticked_at = time.monotonic()
        try:
            supervisor.tick()
            if time.monotonic() >= next_beat:
                worker_beat(worker=worker, role="deployments")
                if is_leasing:
                    endpoint_devices_renew()
                next_beat = time.monotonic() + BEAT_SECONDS
                logs_limit(supervisor.config)
                model_copies_limit(supervisor.config)
        except DatabaseError:  # the database may come back; meanwhile the endpoints keep serving
            log.exception("database not reachable")
            close_old_connections()
            stop.wait(1.0)
        except OSError:  # the disk may be full; the endpoints must be supervised nevertheless
            log.exception("could not limit logs and copies of models")
    supervisor.stop()
    if is_leasing:
        endpoint_devices_withdraw()
    worker_leave(worker=worker)
