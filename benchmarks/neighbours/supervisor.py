"""Supervises deployments, with the product's supervisor, pretended engines and a pretended storage that is slow.

    python -m benchmarks.neighbours.supervisor     prints its process id, and ends when its standard input is closed

A download from the storage goes on until the file `downloaded` exists in the data folder.
"""

import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

TICK_SECONDS = 0.25  # as in `manage.py supervise_deployments`
CHUNK, CHUNK_SECONDS = bytes(2**20), 0.5


class SlowStorage:
    def __init__(self, downloaded: Path) -> None:
        self._downloaded = downloaded

    def get_folder(self, prefix: str, target: Path) -> None:
        target.mkdir(parents=True)
        while not self._downloaded.exists():
            (target / "weights").write_bytes(CHUNK)
            time.sleep(CHUNK_SECONDS)


def main() -> None:
    import django

    django.setup()
    from django.conf import settings
    from django.db import DatabaseError

    from control.core.settings.config import get_config
    from control.serving.deployments.launchers import engine_process
    from control.serving.deployments.supervisor import Supervisor, SupervisorTimings
    from control.tenants.row_security.scope import Across, across_tenants

    settings.SLIPSTREAM_ENGINE_COMMAND = [sys.executable, "-m", "benchmarks.gateway.engine"]
    storage = SlowStorage(get_config().data_dir / "downloaded")
    vars(engine_process)["get_storage"] = lambda: storage
    halt = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        halt.set()

    threading.Thread(target=wait, daemon=True).start()
    lifeline, _ = os.pipe()  # the engines end when this process ends, even if it is killed
    supervisor = Supervisor(get_config(), timings=SupervisorTimings(drain_seconds=1.0), lifeline=lifeline)
    print(os.getpid(), flush=True)
    with across_tenants(Across.SUPERVISION):
        while not halt.wait(TICK_SECONDS):
            with suppress(DatabaseError):  # as in the command, a locked database does not end the supervisor
                supervisor.tick()
        supervisor.stop()
    os._exit(0)  # ends at once, although copies from the slow storage may still run


if __name__ == "__main__":
    main()
