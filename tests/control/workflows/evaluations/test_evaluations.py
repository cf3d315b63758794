"""Evaluations through the API, and the results of finished evaluations."""

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import transaction
from django.test import Client

from control.core.settings.config import Config
from control.core.storage.backends import get_storage
from control.data.files.services import file_delete
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.services import job_claim, job_end_cancelled
from control.queue.jobs.state import event_add
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.selectors import worker_seconds
from control.workflows.evaluations.services import evaluation_finish
from control.workflows.prompt_files.held_out import held_out_key
from slipstream.certificates import verify
from tests.control.factories import chat_row, make_file, make_job
from tests.control.operations.console.support import change_path, operator_client, page
from tests.control.workflows.evaluations.evidence import make_evidence
from tests.control.workflows.evaluations.helpers import make_speculator
from tests.control.workflows.pipelines.helpers import advance_to_stage, end_evaluation, make_pipeline

REPORT = {"prompts_held_out": 20, "outputs_equal": 20, "acceptance_length": 2.0, "speedup": 1.5}


def post(client: Client, **body: Any) -> Any:
    return client.post("/v1/evaluations", body, content_type="application/json")


def create_evaluation(client: Client, organization: Organization, **body: Any) -> dict[str, Any]:
    rows = [chat_row(f"row-{number}") for number in range(3)]
    request = {
        "speculator_id": make_speculator(organization).pk, "prompts_file": make_file(organization, rows).pk, **body
    }  # fmt: skip
    response = post(client, **request)
    assert response.status_code == 201, response.content
    made: dict[str, Any] = response.json()
    return made


def test_an_evaluation_creates_a_job_with_the_rows_of_a_file(client: Client, organization: Organization) -> None:
    made = create_evaluation(client, organization, max_tokens=64, price_per_gpu_hour=2.5)

    assert (made["status"], made["concurrencies"], made["report"]) == ("queued", [1, 4, 16, 32], None)
    job = Job.objects.get(pk=made["job_id"])
    assert (job.kind, job.params["drafter"], job.params["max_tokens"]) == ("evaluation", "medusa+suffix", 64)
    assert (job.params["price_per_gpu_hour"], job.params["training_seconds"]) == (2.5, None)
    with get_storage().open(job.params["rows_key"]) as rows:
        assert len(rows.readlines()) == 3
    assert client.get("/v1/evaluations").json()["data"] == [made]
    assert client.get(f"/v1/evaluations?speculator_id={made['speculator_id']}").json()["data"] == [made]
    assert client.get("/v1/evaluations?speculator_id=spec_other").json()["data"] == []


def test_an_evaluation_without_a_file_uses_the_prompts_held_out_by_the_pipeline(
    client: Client, organization: Organization
) -> None:
    pipeline = end_evaluation(advance_to_stage("evaluate", make_pipeline(organization, deploy=False)))

    made = post(client, speculator_id=pipeline.speculator_id).json()

    job = Job.objects.get(pk=made["job_id"])
    assert job.params["rows_key"] == held_out_key(organization.pk, pipeline.pk)
    assert made["prompts_file"] == pipeline.held_out_file_id
    assert [evaluation["speculator_id"] for evaluation in client.get("/v1/evaluations").json()["data"]] == [
        pipeline.speculator_id, pipeline.speculator_id,
    ]  # fmt: skip  # one of the two was created by the pipeline


def test_an_evaluation_of_a_speculator_without_a_pipeline_needs_a_file(
    client: Client, organization: Organization
) -> None:
    response = post(client, speculator_id=make_speculator(organization).pk)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompts_file"


def test_a_speculator_in_training_cannot_be_evaluated(client: Client, organization: Organization) -> None:
    speculator = make_speculator(organization)
    Speculator.objects.filter(pk=speculator.pk).update(status="training")

    response = post(client, speculator_id=speculator.pk, prompts_file=make_file(organization).pk)

    assert (response.status_code, response.json()["error"]["code"]) == (409, "speculator_not_ready")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"concurrencies": []}, "concurrencies"),
        ({"concurrencies": [0]}, "concurrencies.0"),
        ({"price_per_gpu_hour": -1}, "price_per_gpu_hour"),
        ({"price_per_gpu_hour": "2"}, "price_per_gpu_hour"),
        ({"repeats": 11}, "repeats"),
        ({"concurrency": [1]}, "concurrency"),
    ],
)
def test_invalid_parameters_are_refused(
    client: Client, organization: Organization, body: dict[str, Any], param: str
) -> None:
    response = post(client, speculator_id="spec_1", **body)

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_invalid_rows_are_refused_before_a_worker_sees_them(client: Client, organization: Organization) -> None:
    rows = make_file(organization, b"{}\n")

    response = post(client, speculator_id=make_speculator(organization).pk, prompts_file=rows.pk)

    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("prompts_file: line 1:")
    assert not Job.objects.exists()


def test_the_default_price_per_gpu_hour_is_that_of_the_configuration(
    client: Client, organization: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings.SLIPSTREAM.model_copy(update={"price_per_gpu_hour": 1.25})
    assert isinstance(config, Config)
    monkeypatch.setattr(settings, "SLIPSTREAM", config)

    assert create_evaluation(client, organization)["price_per_gpu_hour"] == 1.25


def test_an_evaluation_can_be_cancelled(client: Client, organization: Organization) -> None:
    made = create_evaluation(client, organization)

    for _ in range(2):
        assert client.post(f"/v1/evaluations/{made['id']}/cancel").status_code == 202

    assert Job.objects.get(pk=made["job_id"]).cancel_requested_at is not None


def make_finished(client: Client, organization: Organization, **evidence: Any) -> Evaluation:
    evaluation = Evaluation.objects.get(pk=create_evaluation(client, organization)["id"])
    evaluation_finish(evaluation=evaluation, report=REPORT, evidence=make_evidence(**evidence), plots_prefix="e")
    Job.objects.filter(pk=evaluation.job_id).update(status="succeeded", result=REPORT)
    return evaluation


def test_a_finished_evaluation_has_a_report_and_a_verifiable_certificate(
    client: Client, organization: Organization
) -> None:
    evaluation = make_finished(client, organization)

    body = client.get(f"/v1/evaluations/{evaluation.pk}").json()
    assert (body["status"], body["result"], body["report"]) == ("succeeded", "equal", REPORT)
    certificate = client.get(f"/v1/evaluations/{evaluation.pk}/certificate").json()
    key = client.get("/v1/certificates/public_key").json()["public_key"]
    statement = verify(certificate, key)
    assert statement["speculator"]["id"] == evaluation.speculator_id
    assert statement["prompts"]["file_id"] == evaluation.prompts_file_id
    assert statement["counts"]["equal"] + statement["counts"]["different"] == statement["counts"]["prompts"]
    evaluation.speculator.refresh_from_db()
    assert (evaluation.speculator.report, evaluation.speculator.plot_key) == (REPORT, "e/report.png")


def test_a_certificate_of_an_inexact_machine_states_that_the_machine_is_inexact(
    client: Client, organization: Organization
) -> None:
    evaluation = make_finished(client, organization, exact_reason="the product down gives a row other bits")

    statement = client.get(f"/v1/evaluations/{evaluation.pk}/certificate").json()["statement"]

    assert (statement["exact"], statement["exact_reason"]) == (False, "the product down gives a row other bits")


def test_an_evaluation_stored_by_an_older_version_is_shown(client: Client, organization: Organization) -> None:
    evaluation = make_finished(client, organization)
    signed = {"object": "certificate", "of": "an older version"}
    Evaluation.objects.update(settings={"concurrencies": ["2"], "temperature": 0}, certificate=signed)
    Job.objects.update(result=[1], error="failed", metrics=[])

    body = client.get(f"/v1/evaluations/{evaluation.pk}").json()

    assert (body["concurrencies"], body["max_tokens"], body["repeats"]) == (["2"], None, 1)
    assert (body["price_per_gpu_hour"], body["result"]) == (None, None)
    assert (body["report"], body["error"], body["metrics"]) == ([1], "failed", [])
    assert client.get(f"/v1/evaluations/{evaluation.pk}/certificate").json() == signed


def test_outputs_that_differ_are_certified_as_different(client: Client, organization: Organization) -> None:
    evaluation = make_finished(client, organization, equal=19, different=1)

    assert client.get(f"/v1/evaluations/{evaluation.pk}").json()["result"] == "different"


def test_finishing_an_evaluation_again_does_not_replace_its_certificate(
    client: Client, organization: Organization
) -> None:
    evaluation = make_finished(client, organization)
    evaluation.refresh_from_db()
    first = evaluation.certificate

    evaluation_finish(
        evaluation=evaluation, report={}, evidence=make_evidence(equal=0, different=20), plots_prefix="late"
    )

    evaluation.refresh_from_db()
    assert (evaluation.certificate, evaluation.plots_prefix) == (first, "e")


def test_an_unfinished_evaluation_has_no_certificate_and_no_plot(client: Client, organization: Organization) -> None:
    made = create_evaluation(client, organization)

    for document, code in (("certificate", "certificate_not_found"), ("plot", "plot_not_found")):
        response = client.get(f"/v1/evaluations/{made['id']}/{document}")
        assert (response.status_code, response.json()["error"]["code"]) == (404, code)
    assert client.get(f"/v1/evaluations/{made['id']}/plot?format=gif").status_code == 400


def test_training_plots_are_downloaded_by_name(client: Client, organization: Organization, tmp_path: Path) -> None:
    speculator = make_speculator(organization)
    path = f"/v1/speculators/{speculator.pk}/plot"
    assert client.get(f"{path}?name=loss").json()["error"]["code"] == "plot_not_found"
    (tmp_path / "loss.svg").write_text("<svg/>")
    get_storage().put_file(f"{speculator.storage_prefix}/plots/loss.svg", tmp_path / "loss.svg")

    response = client.get(f"{path}?name=loss")

    assert b"".join(response) == b"<svg/>"
    assert response.headers["Content-Type"] == "image/svg+xml"
    assert client.get(f"{path}?name=../config.json").json()["error"]["param"] == "name"


def test_the_console_shows_evaluations_and_plots_on_the_page_of_a_speculator(
    client: Client, organization: Organization
) -> None:
    evaluation = make_finished(client, organization, equal=19, different=1)

    text = page(operator_client(), change_path("catalog_speculator", evaluation.speculator_id))

    assert evaluation.pk in text
    assert "different" in text
    assert f'src="/admin/speculators/{evaluation.speculator_id}/plot?name=loss"' in text


@pytest.mark.usefixtures("db")
def test_worker_time_is_the_sum_over_all_claims() -> None:
    job, start = make_job(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    with transaction.atomic():
        for kind in ("queued", "claimed", "retried", "claimed", "checkpoint_committed", "succeeded"):
            event_add(job_id=job.pk, type=kind, data={})
    for event, seconds in zip(
        JobEvent.objects.filter(job=job).order_by("seq"), (0, 10, 15, 100, 110, 130), strict=True
    ):
        JobEvent.objects.filter(pk=event.pk).update(created_at=start + dt.timedelta(seconds=seconds))

    assert worker_seconds(job) == 5 + 30  # from each "claimed" to "retried" or "succeeded"


def test_cancelling_an_evaluation_records_events_for_the_evaluation_and_its_job(
    client: Client, organization: Organization
) -> None:
    made = create_evaluation(client, organization)

    client.post(f"/v1/evaluations/{made['id']}/cancel")
    claim = job_claim(job_id=made["job_id"], worker="worker-1")
    assert claim is not None
    job_end_cancelled(claim=claim)

    event_types = Event.objects.filter(object_id=made["id"]).values_list("type", flat=True)
    assert list(event_types) == ["evaluation.cancelled"]
    assert Event.objects.filter(object_id=made["job_id"], type="job.cancelled").exists()


def test_prompts_that_the_speculator_was_trained_on_are_reported(client: Client, organization: Organization) -> None:
    pipeline = advance_to_stage("evaluate", make_pipeline(organization))
    Speculator.objects.filter(pk=pipeline.speculator_id).update(status=Speculator.Status.READY)
    with get_storage().open(pipeline.prompts_file.storage_key) as source:
        lines = source.read().splitlines()
    number, trained = next((number, line) for number, line in enumerate(lines, start=1) if line)
    prompts = make_file(organization, json.dumps(chat_row("new", content="a new one")).encode() + b"\n" + trained)

    made = create_evaluation(client, organization, speculator_id=pipeline.speculator_id, prompts_file=prompts.pk)

    assert made["contamination"]["exact"] == {"num_rows": 1, "examples": [{"line": number, "other_line": 2}]}
    file_delete(file=pipeline.prompts_file)
    again = create_evaluation(client, organization, speculator_id=pipeline.speculator_id, prompts_file=prompts.pk)
    assert again["contamination"] is None
