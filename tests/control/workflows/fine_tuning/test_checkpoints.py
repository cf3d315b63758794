"""The adapters in the checkpoints of ended jobs are counted as stored bytes, and are deleted on request."""

from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_succeed
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import Organization
from control.tenants.quotas.models import Limits, StoredBytes
from control.workflows.fine_tuning.models import FineTuningJob
from tests.control.factories import client_of, make_base_model, make_file, make_organization
from tests.control.workflows.fine_tuning.test_api import JOBS, fine_tune_rows
from tests.control.workflows.fine_tuning.test_labels import claimed, commit, create
from workers.supervisor.stored_bytes import stored_bytes_recount
from workers.supervisor.tidy import job_untidy, jobs_tidy

pytestmark = pytest.mark.django_db


@pytest.fixture
def training_file(organization: Organization) -> File:
    make_base_model("tiny", organization)
    return make_file(organization, fine_tune_rows(), purpose="fine-tune")


def end_with_checkpoints(client: Client, training_file: File, folder: Path) -> tuple[FineTuningJob, Claim]:
    job, claim = claimed(create(client, training_file))
    commit(claim, folder / "a", step=10, rank=3)
    commit(claim, folder / "b", step=20, rank=4)
    job_succeed(claim=claim, result={})
    return job, claim


def stored(client: Client) -> int:
    return int(client.get("/v1/storage").json()["checkpoints_bytes"])


def bytes_in_storage(claim: Claim) -> int:
    return sum(get_storage().sizes(f"jobs/{claim.job_id}").values())


def checkpoints(client: Client, job: FineTuningJob) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = client.get(f"{JOBS}/{job.pk}/checkpoints").json()["data"]
    return data


def test_the_adapters_of_an_ended_job_count_towards_the_limit_once(
    client: Client, organization: Organization, training_file: File, tmp_path: Path
) -> None:
    job, claim = end_with_checkpoints(client, training_file, tmp_path)
    assert stored(client) == 0, "the files of a running job are working files"

    jobs_tidy()
    job_untidy(claim.job_id)
    jobs_tidy()

    assert stored(client) == bytes_in_storage(claim) > 0
    assert sum(checkpoint["bytes"] for checkpoint in checkpoints(client, job)) == stored(client)
    StoredBytes.objects.update(checkpoints_bytes=7)
    stored_bytes_recount()
    assert stored(client) == bytes_in_storage(claim)
    Limits.objects.create(organization=organization, storage_bytes=bytes_in_storage(claim))
    refused = client.post(JOBS, {"model": "tiny", "training_file": training_file.pk}, content_type="application/json")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "storage_quota_exceeded")


def test_a_deleted_checkpoint_is_no_longer_stored_or_counted(
    client: Client, training_file: File, tmp_path: Path, django_capture_on_commit_callbacks: Any
) -> None:
    job, claim = end_with_checkpoints(client, training_file, tmp_path)
    jobs_tidy()
    last, first = checkpoints(client, job)
    url = f"{JOBS}/{job.pk}/checkpoints/{first['id']}"

    assert client_of(make_organization()).delete(url).status_code == 404
    with django_capture_on_commit_callbacks(execute=True):
        assert client.delete(url).status_code == 200

    assert checkpoints(client, job)[1]["bytes"] == 0
    assert stored(client) == last["bytes"] == bytes_in_storage(claim)
    for again in (client.delete(url), client.post(f"{url}/adapter", {}, content_type="application/json")):
        assert (again.status_code, again.json()["error"]["code"]) == (404, "checkpoint_not_found")
    made = client.post(f"{JOBS}/{job.pk}/checkpoints/{last['id']}/adapter", {}, content_type="application/json")
    assert made.status_code == 201


def test_files_that_a_killed_process_did_not_delete_are_deleted_later(
    client: Client, training_file: File, tmp_path: Path
) -> None:
    """The test runs no callbacks of commits, so the files remain as after the death of the process."""
    job, claim = end_with_checkpoints(client, training_file, tmp_path)
    first = checkpoints(client, job)[1]
    assert client.delete(f"{JOBS}/{job.pk}/checkpoints/{first['id']}").status_code == 200

    jobs_tidy()

    assert checkpoints(client, job)[1]["bytes"] == 0
    assert stored(client) == checkpoints(client, job)[0]["bytes"] == bytes_in_storage(claim)
    assert not Job.objects.get(pk=claim.job_id).has_stored_work


def test_a_running_job_needs_its_checkpoints(client: Client, training_file: File, tmp_path: Path) -> None:
    job, claim = claimed(create(client, training_file))
    commit(claim, tmp_path / "a", step=10, rank=3)
    (checkpoint,) = checkpoints(client, job)

    refused = client.delete(f"{JOBS}/{job.pk}/checkpoints/{checkpoint['id']}")

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "fine_tuning_job_not_ended")
    assert bytes_in_storage(claim) > 0


def test_the_lineage_of_an_adapter_from_a_checkpoint_names_its_job(
    client: Client, training_file: File, tmp_path: Path
) -> None:
    job, _ = end_with_checkpoints(client, training_file, tmp_path)
    checkpoint = checkpoints(client, job)[0]
    url = f"{JOBS}/{job.pk}/checkpoints/{checkpoint['id']}/adapter"
    adapter = client.post(url, {"name": "tone"}, content_type="application/json").json()

    edges = client.get(f"/v1/lineage/{adapter['id']}").json()["edges"]

    assert {"source": job.pk, "target": adapter["id"]} in edges
    assert {"source": training_file.pk, "target": job.pk} in edges
