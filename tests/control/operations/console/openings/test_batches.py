"""The page of a batch shows its number of rows and its errors by code. Members also see its first answers."""

from pathlib import Path

import pytest
from django.db.models import F
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from control.core.settings.config import get_config
from control.data.files.services import file_delete
from control.queue.jobs.models import Job, JobShard
from control.tenants.accounts.models import Organization
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.models import Batch
from control.workflows.batches.samples import MAX_CHARACTERS
from control.workflows.batches.services import batch_validate
from tests.control.factories import make_file, make_organization
from tests.control.operations.console.openings.support import opening, text_of
from tests.control.operations.console.support import change_path, operator_client
from tests.control.operations.console.test_members import sign_in
from tests.control.workflows.batches.helpers import commit_shard, entry, make_batch, put_shard

pytestmark = pytest.mark.django_db
TABLE = "batches_batch"


@pytest.fixture(autouse=True)
def two_rows_per_shard(settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"shard_rows": 2})


@pytest.fixture
def batch(organization: Organization) -> Batch:
    """A batch of seven rows in four shards."""
    batch = make_batch(organization, num_rows=7)
    batch_validate(batch=batch)
    return batch


def run(batch: Batch) -> None:
    """Lets a worker claim the batch."""
    Job.objects.filter(pk=batch.job_id).update(status="running", fence=1, claimed_at=timezone.now())


def test_a_running_batch_shows_the_answers_that_it_has(viewer: Client, batch: Batch, tmp_path: Path) -> None:
    assert "Waiting for a worker, at position 1." in text_of(opening(viewer, TABLE, batch.pk))
    run(batch)
    assert "No row has been answered yet." in opening(viewer, TABLE, batch.pk)
    commit_shard(batch, 0, tmp_path, failed_rows=frozenset({1}))
    commit_shard(batch, 2, tmp_path)  # its rows come after an unfinished shard

    html = opening(viewer, TABLE, batch.pk)

    text = text_of(html)
    assert "4 / 7 rows 7 rows 3 answered 1 failed" in text
    assert "héllo 0" in html
    assert "row-1: http_400" in text
    assert "héllo 4" not in html
    assert "left." in text
    assert 'data-live-active="yes"' in html


def test_a_completed_batch_shows_errors_by_code_and_its_first_answers(
    viewer: Client, batch: Batch, tmp_path: Path
) -> None:
    shard = JobShard.objects.get(job=batch.job, shard_no=0)
    answered, failed = entry(0), entry(1, ok=False)
    answered["output"]["response"]["body"] = {"choices": [{"message": {"content": "<b>" + "x" * 5000}}]}
    failed["output"] |= {"response": None, "error": {"code": "context_length_exceeded", "message": "It is <long>."}}
    put_shard(shard, [answered, failed], tmp_path)
    for number in (1, 2, 3):
        commit_shard(batch, number, tmp_path, failed_rows=frozenset({2, 4}))
    batch_assemble(batch=batch, final="completed")

    html = opening(viewer, TABLE, batch.pk)

    text = text_of(html)
    assert "It is completed." in text
    assert "7 rows 4 answered 3 failed" in text
    assert "code rows http_400 2 context_length_exceeded 1" in text
    assert "row-1 context_length_exceeded It is &lt;long&gt;." in text
    assert "&lt;b&gt;" + "x" * (MAX_CHARACTERS - 3) + "<" in html.replace("</p>", "<")
    assert [f"row-{number}" in text for number in range(7)] == [True] * 7
    assert change_path("files_file", batch.output_file_id) in html
    assert 'data-live-active="no"' in html


def test_a_batch_whose_input_file_is_bad_shows_the_first_bad_line(viewer: Client, organization: Organization) -> None:
    batch = make_batch(organization)
    Batch.objects.filter(pk=batch.pk).update(input_file=make_file(organization, b"{}\nno json\n"))
    batch.refresh_from_db()
    assert "Its input file is being checked." in opening(viewer, TABLE, batch.pk)
    batch_validate(batch=batch)

    text = text_of(opening(viewer, TABLE, batch.pk))

    assert "It has failed." in text
    assert "line 1:" in text
    assert "errors in all)" in text


def test_a_cancelled_batch_shows_the_rows_that_were_not_run(viewer: Client, batch: Batch, tmp_path: Path) -> None:
    commit_shard(batch, 0, tmp_path)
    batch_assemble(batch=batch, final="cancelled")

    text = text_of(opening(viewer, TABLE, batch.pk))

    assert "It was cancelled." in text
    assert "2 answered 0 failed 5 not run" in text
    assert "batch_cancelled 5" in text


def test_deleted_results_are_not_shown(viewer: Client, batch: Batch, tmp_path: Path) -> None:
    commit_shard(batch, 0, tmp_path)
    batch_assemble(batch=batch, final="cancelled")
    assert batch.output_file is not None
    file_delete(file=batch.output_file)

    html = opening(viewer, TABLE, batch.pk)

    assert "The result files have been deleted." in html
    assert "héllo" not in html


def test_operators_see_counts_and_codes_but_no_answers(batch: Batch, tmp_path: Path) -> None:
    commit_shard(batch, 0, tmp_path, failed_rows=frozenset({1}))
    operator = operator_client()
    assert "héllo" not in opening(operator, TABLE, batch.pk)
    batch_assemble(batch=batch, final="cancelled")

    html = opening(operator, TABLE, batch.pk)

    assert "batch_cancelled" in html
    assert "héllo" not in html
    assert "row-1" not in html


def test_other_organizations_see_nothing(batch: Batch) -> None:
    stranger = sign_in(make_organization(), "owner")
    assert stranger.get(change_path(TABLE, batch.pk)).status_code == 404


def test_the_number_of_queries_does_not_depend_on_the_number_of_shards(
    viewer: Client, batch: Batch, tmp_path: Path
) -> None:
    commit_shard(batch, 0, tmp_path)
    JobShard.objects.filter(job=batch.job, shard_no=3).update(row_to=F("row_from") + 1)
    JobShard.objects.bulk_create(
        JobShard(job=batch.job, shard_no=number, row_from=2 * number, row_to=2 * number + 2) for number in range(4, 300)
    )

    opening(viewer, TABLE, batch.pk)  # checks the number of queries
