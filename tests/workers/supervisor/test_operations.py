"""Operations while jobs run: a rolling restart of workers, and the restoration of a backup."""

import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings
from django.db import connection

from control.queue.jobs.models import Job, JobEvent
from control.workflows.batches.models import Batch
from tests.databases import connected_to, needs_postgres, postgres_server
from tests.deploy.test_runbook import program
from tests.postgres import OWNER
from tests.workers.supervisor.live import LiveStack, kill_9
from tests.workers.supervisor.test_worker_process import expected_output, output_of

pytestmark = pytest.mark.soak

CONTENTS = [f"prompt {number}" for number in range(100)]
NUM_RESTARTS, SECONDS_BETWEEN, GRACE_SECONDS = 30, 10, 20
MIN_UNFINISHED = 4  # more jobs than workers, so that each worker has one when it is stopped


def num_events(job_id: str, kind: str) -> int:
    return JobEvent.objects.filter(job_id=job_id, type=kind).count()


@pytest.mark.timeout(1200)
def test_no_job_is_lost_or_retried_while_workers_are_restarted_one_after_the_other(
    stack: LiveStack, progress: Callable[[str], None]
) -> None:
    child = "--row-seconds 0.1"
    workers = [stack.start_worker(child=child) for _ in range(2)]
    batches: list[Batch] = []
    unfinished = Job.objects.filter(finished_at=None)
    for number in range(1, NUM_RESTARTS + 1):
        batches += [stack.make_batch(CONTENTS) for _ in range(MIN_UNFINISHED - unfinished.count())]
        time.sleep(SECONDS_BETWEEN)
        workers.append(stack.start_worker(child=child))
        stack.wait_until(lambda: stack.is_started(workers[-1]), 60)
        batches += [stack.make_batch(CONTENTS) for _ in range(MIN_UNFINISHED - unfinished.count())]
        oldest = workers.pop(0)
        stack.wait_until(lambda worker=oldest: stack.has_job(worker), 60)  # type: ignore[misc]
        oldest.terminate()
        assert oldest.wait(GRACE_SECONDS) == 0
        progress(f"restarted {number} of {NUM_RESTARTS} workers")

    stack.wait_for_jobs([batch.job_id for batch in batches], timeout_seconds=600)

    for batch in batches:
        batch.refresh_from_db()
        assert batch.status == Batch.Status.COMPLETED
        assert output_of(batch) == expected_output(batch.job_id, CONTENTS)
        assert num_events(batch.job_id, "retried") == 0, "a restart counted as a failed attempt of the job"
        assert num_events(batch.job_id, "claimed") == num_events(batch.job_id, "released") + 1
    num_released = JobEvent.objects.filter(type="released").count()
    # Not every worker releases a job: a worker that gets SIGTERM during a job's last shard completes the job instead.
    assert num_released >= NUM_RESTARTS // 2, "too few restarted workers released the job that they were working on"


@pytest.mark.parametrize("database_kind", [needs_postgres("postgresql")])
def test_a_running_batch_completes_correctly_after_a_backup_is_restored(
    stack: LiveStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restored storage is newer than the restored database, so it has shards that the database does not know."""
    server, name, dump = postgres_server(), str(connection.settings_dict["NAME"]), tmp_path / "dump"
    batch = stack.make_batch(CONTENTS)
    first = stack.start_worker(child="--row-seconds 0.05")
    stack.wait_for_committed_shards(batch.job_id, 5)
    dump_command = [str(program("pg_dump")), "--format=custom", f"--file={dump}", server.url(name, "postgres")]
    subprocess.run(dump_command, check=True, timeout=60)
    kill_9(first)
    stack.start_worker(child="--row-seconds 0.05")
    stack.wait_for_committed_shards(batch.job_id, 15)
    stack.close()

    data_dir, url = tmp_path / "restored", server.url(f"{name}_restored")
    shutil.copytree(settings.SLIPSTREAM.storage_dir, data_dir / "storage")
    server.create_database(f"{name}_restored")
    restore_command = [str(program("pg_restore")), "--exit-on-error", "--no-owner"]
    restore_command.append(f"--dbname={server.url(f'{name}_restored', OWNER)}")
    try:
        subprocess.run([*restore_command, dump], check=True, timeout=60)
        monkeypatch.setattr(settings, "SLIPSTREAM", settings.SLIPSTREAM.model_copy(update={"data_dir": data_dir}))
        with connected_to(url):
            changes = {"SLIPSTREAM_DATABASE_URL": url, "SLIPSTREAM_DATA_DIR": str(data_dir)}
            restored = LiveStack(
                data_dir=data_dir,
                base_model=stack.base_model,
                organization=stack.organization,
                environment={**stack.environment, **changes},
            )
            assert 5 <= num_events(batch.job_id, "shard_committed") < 15  # the state at the time of the dump
            restored.start_worker()
            job = restored.wait_for_job(batch.job_id)
            restored.close()
            batch.refresh_from_db()
            assert (job.status, batch.status, job.attempt) == (Job.Status.SUCCEEDED, Batch.Status.COMPLETED, 2)
            assert output_of(batch) == expected_output(job.pk, CONTENTS)
    finally:
        server.drop_database(f"{name}_restored")
