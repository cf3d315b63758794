"""Objects that attempts have stored are deleted after their job has ended, except for the job's result."""

from pathlib import Path

import pytest
from django.utils import timezone

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.queue.jobs.protocol import PROTOCOL
from control.tenants.accounts.models import Organization
from control.workflows.evaluations.services import evaluation_rows_key
from tests.control.factories import make_base_model, make_job, make_organization
from tests.control.serving.deployments.support import make_speculator
from workers.supervisor.attempt import work_folders_sweep
from workers.supervisor.tidy import jobs_tidy

ENDED = (Job.Status.SUCCEEDED, Job.Status.FAILED, Job.Status.CANCELLED)


@pytest.fixture
def organization(db: None) -> Organization:
    return make_organization()


@pytest.fixture
def content(tmp_path: Path) -> Path:
    path = tmp_path / "content"
    path.write_bytes(b"weights")
    return path


def end(job: Job, status: Job.Status = Job.Status.SUCCEEDED) -> None:
    Job.objects.filter(pk=job.pk).update(status=status, finished_at=timezone.now(), lease_until=None)


def stored(job: Job) -> set[str]:
    return set(get_storage().sizes(f"jobs/{job.pk}"))


@pytest.mark.parametrize("status", ENDED)
def test_checkpoints_are_deleted_once_the_job_has_ended(
    organization: Organization, content: Path, status: Job.Status
) -> None:
    job = make_job(organization)
    for step in (1, 2):
        get_storage().put_file(f"jobs/{job.pk}/checkpoints/{step:08d}.1/model.safetensors", content)

    end(job, status)
    assert jobs_tidy() == 1

    assert stored(job) == set()
    assert jobs_tidy() == 0, "a tidied job is not examined again"


def test_the_objects_of_a_job_of_the_next_release_are_left_to_its_workers(
    organization: Organization, content: Path
) -> None:
    job = make_job(organization, min_protocol=PROTOCOL + 1)
    get_storage().put_file(f"jobs/{job.pk}/kept", content)

    end(job)

    assert jobs_tidy() == 0
    assert stored(job) == {"kept"}


@pytest.mark.parametrize("status", [Job.Status.QUEUED, Job.Status.RUNNING, Job.Status.PAUSED])
def test_a_job_that_can_continue_keeps_its_checkpoint(
    organization: Organization, content: Path, status: Job.Status
) -> None:
    job = make_job(organization, status=status)
    get_storage().put_file(f"jobs/{job.pk}/checkpoints/00000001.1/model.safetensors", content)

    assert jobs_tidy() == 0

    assert stored(job) == {"checkpoints/00000001.1/model.safetensors"}


def test_a_jobs_speculator_is_kept_and_speculators_of_attempts_that_lost_the_job_are_deleted(
    organization: Organization, content: Path
) -> None:
    speculator = make_speculator(make_base_model(), organization)
    job = make_job(organization, params={"speculator_id": speculator.pk})
    for fence in (1, 12, 13):
        get_storage().put_file(f"jobs/{job.pk}/speculator.{fence}/config.json", content)
    Speculator.objects.filter(pk=speculator.pk).update(storage_prefix=f"jobs/{job.pk}/speculator.12")

    end(job)
    jobs_tidy()

    assert stored(job) == {"speculator.12/config.json"}


def test_the_plots_of_an_evaluation_are_kept_and_its_rows_are_deleted(
    organization: Organization, content: Path
) -> None:
    job = make_job(organization, kind=Job.Kind.EVALUATION)
    evaluation = make_speculator(make_base_model(), organization).evaluations.create(
        organization=organization, job=job, plots_prefix=f"jobs/{job.pk}/evaluation.3"
    )
    rows_key = evaluation_rows_key(organization.pk, evaluation.pk)
    for key in (f"jobs/{job.pk}/evaluation.3/report.png", f"jobs/{job.pk}/checkpoints/00000001.3/x", rows_key):
        get_storage().put_file(key, content)

    end(job)
    jobs_tidy()

    assert stored(job) == {"evaluation.3/report.png"}
    assert not get_storage().exists(rows_key)


def test_objects_that_a_killed_attempt_stored_after_the_end_of_its_job_are_deleted(
    organization: Organization, content: Path
) -> None:
    job = make_job(organization)
    end(job)
    jobs_tidy()
    (get_config().data_dir / "work" / f"{job.pk}.1").mkdir(parents=True)  # only a killed attempt leaves its folder
    get_storage().put_file(f"jobs/{job.pk}/checkpoints/00000009.1/model.safetensors", content)

    work_folders_sweep()
    jobs_tidy()

    assert stored(job) == set()


def test_jobs_tidy_handles_at_most_20_jobs_per_call(organization: Organization) -> None:
    for _ in range(45):
        end(make_job(organization))

    assert [jobs_tidy() for _ in range(4)] == [20, 20, 5, 0]
