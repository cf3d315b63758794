"""`LiveStack`: a database, a storage folder and real worker processes for one test.

The test and the workers are separate processes that share the database, by default a SQLite file.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job, JobEvent, JobShard
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create
from tests.control.factories import chat_row, make_file
from tests.leaks import leaks_in, secrets_in
from tests.workers.supervisor.history import check_histories

ROOT = Path(__file__).parents[3]
FAKE_CHILD, POISON_CHILD, REAL_CHILD = (
    Path(__file__).with_name(f"{kind}_child.py") for kind in ("fake", "poison", "real")
)
MAX_TOKENS = 24


@dataclass(kw_only=True)
class LiveStack:
    data_dir: Path
    base_model: BaseModel
    organization: Organization
    environment: dict[str, str]
    child_program: Path = FAKE_CHILD
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_worker(
        self,
        *command: str,
        child: str = "",
        child_program: Path | None = None,
        redis_url: str = "",
        drain_seconds: float = 10.0,
    ) -> subprocess.Popen[bytes]:
        """Starts a worker, by default one that polls for jobs. Its jobs run `child_program` with the options
        `child`."""
        child_command = shlex.join((sys.executable, str(child_program or self.child_program)))
        environment = {
            **self.environment,
            "SLIPSTREAM_CHILD_COMMAND": f"{child_command} {child}",
            "SLIPSTREAM_REDIS_URL": redis_url,
            "SLIPSTREAM_DRAIN_SECONDS": str(drain_seconds),
        }
        log = (self.data_dir / f"worker-{len(self.workers)}.log").open("wb")
        with log:
            worker = subprocess.Popen(
                command or (sys.executable, "-m", "workers.supervisor"),
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.workers.append(worker)
        return worker

    @property
    def has_real_children(self) -> bool:
        return self.child_program == REAL_CHILD

    def allow(self, num_rows: int) -> Path:
        """Lets children with the option `--limit FILE` answer only the first `num_rows` rows. Returns FILE."""
        path = self.data_dir / "allowed"
        path.touch()
        os.truncate(path, num_rows)
        return path

    def make_batch(self, contents: list[str]) -> Batch:
        rows = [
            chat_row(f"row-{number}", content=content, max_tokens=MAX_TOKENS, temperature=0)
            for number, content in enumerate(contents)
        ]
        return batch_create(
            organization=self.organization,
            input_file=make_file(self.organization, rows),
            endpoint="/v1/chat/completions",
            model=self.base_model.name,
        )

    def wait_for_job(self, job_id: str, *, timeout_seconds: float = 60) -> Job:
        """Waits until the job has ended, and checks its history."""
        self.wait_for_jobs([job_id], timeout_seconds=timeout_seconds)
        return Job.objects.get(pk=job_id)

    def wait_for_jobs(self, job_ids: Sequence[str], *, timeout_seconds: float = 60) -> None:
        """Waits until all these jobs have ended, and checks the histories of all jobs in the database."""
        unfinished = Job.objects.filter(pk__in=job_ids, finished_at=None)
        self.wait_until(lambda: not unfinished.exists(), timeout_seconds)
        check_histories(job_ids)

    def is_started(self, worker: subprocess.Popen[bytes]) -> bool:
        """Whether the worker is alive and has started to poll for jobs."""
        log = self.data_dir / f"worker-{self.workers.index(worker)}.log"
        return worker.poll() is None and "worker started" in log.read_text()

    def has_job(self, worker: subprocess.Popen[bytes]) -> bool:
        return Job.objects.filter(status=Job.Status.RUNNING, worker__contains=f"-{worker.pid}-").exists()

    def wait_for_committed_shards(self, job_id: str, count: int) -> None:
        self.wait_until(lambda: num_committed(job_id) >= count, 60)

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            assert time.monotonic() < deadline, f"the condition is false after {timeout_seconds} s; {self.logs()}"
            time.sleep(0.05)  # polls, because nothing notifies this process of changes by other processes

    @contextmanager
    def serve(
        self, application: str = "control.asgi:application", *, port: int = 0, **environment: str
    ) -> Iterator[str]:
        """Runs the API in another process and yields its URL. At the end, the process is killed."""
        port = port or free_port()
        command = [sys.executable, "-m", "uvicorn", application, "--port", str(port), "--lifespan", "on"]
        with (self.data_dir / "worker-api.log").open("ab") as log:
            server = subprocess.Popen(
                command, cwd=ROOT, env={**self.environment, **environment}, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            self.wait_until(lambda: is_listening(port), 40)
            yield f"http://127.0.0.1:{port}"
        finally:
            kill_9(server)

    def holder_of(self, job_id: str) -> subprocess.Popen[bytes]:
        """Waits until a worker that is neither dead nor frozen has claimed the job. Returns this worker."""
        found: list[subprocess.Popen[bytes]] = []

        def has_holder() -> bool:
            job = Job.objects.get(pk=job_id)
            assert job.finished_at is None, f"the job ended too soon: {job.error}"
            alive = (worker for worker in self.workers if worker.poll() is None and not is_frozen(worker.pid))
            found[:] = [worker for worker in alive if job.status == "running" and f"-{worker.pid}-" in job.worker]
            return bool(found)

        self.wait_until(has_holder, 40)
        return found[0]

    def logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self.data_dir.glob("worker-*.log")))

    def count_logged(self, words: str) -> int:
        """Counts the lines with these words in the logs of all workers."""
        logs = self.data_dir.glob("worker-*.log")
        return sum(words in line for path in logs for line in path.read_text().splitlines())

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def check_leaks(stack: LiveStack) -> None:
    """Checks S8 of docs/reliability.md: logs contain no secrets; errors and events of jobs contain no internals."""
    for path in (*stack.data_dir.glob("*.log"), *stack.data_dir.glob("logs/**/*.log")):
        assert secrets_in(path.read_text(errors="replace")) == [], path.name
    for error in Job.objects.exclude(error=None).values_list("error", flat=True):
        assert leaks_in(str(error)) == []
    for data in JobEvent.objects.values_list("data", flat=True):
        assert leaks_in(str(data)) == []


def num_committed(job_id: str) -> int:
    return JobShard.objects.filter(job_id=job_id).exclude(storage_key="").count()


def kill_9(worker: subprocess.Popen[bytes]) -> None:
    worker.send_signal(signal.SIGKILL)
    worker.wait()


def is_frozen(pid: int) -> bool:
    """Whether all threads of the process are stopped. (SIGSTOP reaches threads on other processors with a delay.)"""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def read_object(key: str) -> bytes:
    with get_storage().open(key) as source:
        return source.read()


def children_of(data_dir: Path) -> list[int]:
    """Returns the process ids of all running job children whose command line has the work folder in `data_dir`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (process / "cmdline").read_bytes()
        except OSError:
            continue  # the process has ended
        if os.fsencode(data_dir / "work") in arguments:
            found.append(int(process.name))
    return found
