"""The id of a request appears in the events of its job and in the logs of the job's worker and child process."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings
from structlog.contextvars import get_contextvars
from structlog.testing import capture_logs

from control.core.observability.child_logs import child_log_environment
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.origin import origin_of
from control.tenants.accounts.models import Organization
from tests.control.factories import chat_row, make_base_model, make_file
from tests.workers.supervisor.conftest import stack as stack
from tests.workers.supervisor.live import LiveStack

ROOT = Path(__file__).resolve().parents[4]
REQUEST_ID = "a-request-of-the-caller"


def test_each_request_is_logged_once_with_its_id_organization_and_status(
    client: Client, organization: Organization, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "control.core.observability.requests"):
        client.get("/v1/jobs/job_1?secret=value", headers={"x-request-id": REQUEST_ID})

    lines = [record.msg for record in caplog.records if record.name == "control.core.observability.requests"]
    assert len(lines) == 1
    line = lines[0]
    assert isinstance(line, dict)
    assert line["request_id"] == REQUEST_ID
    assert line["organization_id"] == organization.pk
    assert (line["method"], line["path"], line["status"]) == ("GET", "/v1/jobs/job_1", 404)
    assert "organization_id" not in get_contextvars(), "the next request of this thread may be another organization's"


def test_a_job_records_the_request_that_created_it(client: Client, organization: Organization) -> None:
    model = make_base_model(organization=organization)
    file = make_file(organization, [chat_row(model=model.name)])
    body = {"input_file_id": file.pk, "endpoint": "/v1/chat/completions", "completion_window": "24h"}

    response = client.post("/v1/batches", body, "application/json", headers={"x-request-id": REQUEST_ID})

    assert response.status_code == 200, response.content
    job = Job.objects.get()
    assert JobEvent.objects.get(job=job, seq=1).data == {"request_id": REQUEST_ID}
    assert origin_of(job.pk) == {"request_id": REQUEST_ID}


def test_a_job_that_was_not_created_by_a_request_has_no_origin(organization: Organization) -> None:
    with capture_logs():
        assert origin_of("job_unknown") == {}


def test_the_worker_and_its_child_log_the_ids_of_the_job(stack: LiveStack) -> None:
    import structlog

    with structlog.contextvars.bound_contextvars(request_id=REQUEST_ID):
        batch = stack.make_batch(["one", "two"])
    stack.environment |= {
        "DJANGO_SETTINGS_MODULE": "control.core.settings.production",
        "SLIPSTREAM_SECRET_KEY": "k" * 50,
    }
    stack.start_worker()

    stack.wait_for_job(batch.job_id)
    stack.wait_until(lambda: "job succeeded" in stack.logs(), 10)

    ids = {"request_id": REQUEST_ID, "organization_id": stack.organization.pk, "job_id": batch.job_id, "fence": 1}
    lines = [json.loads(line) for line in stack.logs().splitlines() if line.startswith("{")]
    by_event = {line["event"]: line for line in lines}
    for event in ("job claimed", "shard committed", "job succeeded"):
        assert by_event[event].items() >= ids.items()
    assert by_event["shard committed"]["shard"] == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_a_child_process_logs_in_its_supervisors_format_with_the_ids_of_its_job(
    settings: Settings, as_json: bool
) -> None:
    settings.LOGS_ARE_JSON = as_json
    ids = {"job_id": "job_1", "fence": 3, "request_id": REQUEST_ID, "organization_id": "org_1"}
    script = (
        "import logging, sys\n"
        "from workers.log_lines import configure_logging\n"
        "configure_logging(sys.stderr)\n"
        "logging.getLogger('workers.inference.batch').info('shard %s', 'written', extra={'shard': 7})\n"
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    logging.exception('broke')\n"
    )

    child = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT, env={**os.environ, **child_log_environment(ids)}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert child.stdout == ""
    if not as_json:
        assert "shard written" in child.stderr
        assert "fence=3" in child.stderr
        assert "ZeroDivisionError" in child.stderr
        return
    info_line, error_line = (json.loads(line) for line in child.stderr.splitlines())
    assert info_line.items() >= {**ids, "event": "shard written", "shard": 7, "level": "info"}.items()
    assert error_line.items() >= ids.items()
    assert "ZeroDivisionError" in error_line["exception"]
