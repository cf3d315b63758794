"""A database file, a storage folder and worker processes of a test's own.

The test and its workers are separate processes over one SQLite file, as in the embedded stack.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from control.accounts.models import Organization
from control.batches.models import Batch
from control.batches.services import batch_create
from control.catalog.models import BaseModel
from control.jobs.models import Job, JobShard
from control.storage import get_storage
from tests.control.factories import chat_row, make_file
from tests.workers.tasks import fake_child
from tests.workers.tasks.history import check_history

ROOT = Path(__file__).parents[3]
FAKE_CHILD = Path(fake_child.__file__)


@dataclass(kw_only=True)
class LiveStack:
    data_dir: Path
    base_model: BaseModel
    organization: Organization
    environment: dict[str, str]
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_worker(
        self, *command: str, child: str = "", redis_url: str = "", drain_seconds: float = 10.0
    ) -> subprocess.Popen[bytes]:
        """Starts the polling worker, or `command`, with a fake child that gets the options `child`."""
        environment = {
            **self.environment,
            "SLIPSTREAM_CHILD_COMMAND": f"{shlex.quote(sys.executable)} {shlex.quote(str(FAKE_CHILD))} {child}",
            "SLIPSTREAM_REDIS_URL": redis_url,
            "SLIPSTREAM_DRAIN_SECONDS": str(drain_seconds),
        }
        log = (self.data_dir / f"worker-{len(self.workers)}.log").open("wb")
        with log:
            worker = subprocess.Popen(
                command or (sys.executable, "manage.py", "runworker"),
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.workers.append(worker)
        return worker

    def make_batch(self, contents: list[str]) -> Batch:
        rows = [chat_row(f"row-{number}", content=content) for number, content in enumerate(contents)]
        return batch_create(
            organization=self.organization,
            input_file=make_file(self.organization, rows),
            endpoint="/v1/chat/completions",
            model=self.base_model.name,
        )

    def wait_for_job(self, job_id: str, *, timeout_seconds: float = 40) -> Job:
        """Waits until the job has ended, and checks what is written about its life."""
        self.wait_until(lambda: Job.objects.get(pk=job_id).finished_at is not None, timeout_seconds)
        job = Job.objects.get(pk=job_id)
        check_history(job)
        return job

    def wait_for_committed_shards(self, job_id: str, count: int) -> None:
        self.wait_until(lambda: num_committed(job_id) >= count, 30)

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < deadline, f"not so after {timeout_seconds} s; {self.logs()}"
            time.sleep(0.05)  # processes cannot be waited for otherwise

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.data_dir.glob("worker-*.log")))

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def num_committed(job_id: str) -> int:
    return JobShard.objects.filter(job_id=job_id).exclude(storage_key="").count()


def kill_9(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def read_object(key: str) -> bytes:
    with get_storage().open(key) as source:
        return source.read()


def children_of(data_dir: Path) -> list[int]:
    """Processes whose command line names a spec in this folder: children of its jobs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if os.fsencode(data_dir / "work") in arguments:
            found.append(int(process.name))
    return found
