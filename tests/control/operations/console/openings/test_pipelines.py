"""The page of a pipeline shows its stages as a line, with times, the cost so far, and what comes next."""

import datetime as dt
import re
from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import timezone

from control.billing.ledger.models import LedgerLine, Subject
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.pipelines.models import Pipeline, PipelineEvent
from control.workflows.pipelines.services import pipeline_cancel
from tests.control.factories import make_organization
from tests.control.operations.console.openings.support import opening, text_of
from tests.control.operations.console.support import change_path, operator_client
from tests.control.operations.console.test_members import sign_in
from tests.control.workflows.pipelines.helpers import (
    advance_to_stage,
    end_evaluation,
    end_job,
    make_pipeline,
    set_deployment_state,
)

pytestmark = pytest.mark.django_db
TABLE = "pipelines_pipeline"


def steps_of(html: str) -> list[str]:
    return [text_of(step) for step in re.findall(r'<li class="console-step .*?</li>', html)]


def charge(organization: Organization, object_id: str, subject: Subject, nanousd: int) -> None:
    now = timezone.now()
    LedgerLine.objects.create(organization=organization, subject=subject, object_id=object_id, sequence="1", count=1,
                              started_at=now, ended_at=now, cost_nanousd=nanousd)  # fmt: skip


def test_a_running_pipeline_shows_times_progress_cost_and_what_comes_next(
    viewer: Client, organization: Organization
) -> None:
    pipeline = advance_to_stage("train", make_pipeline(organization, gate={"min_speedup": 1.2}))
    start = timezone.now() - dt.timedelta(seconds=300)
    for event, seconds in zip(PipelineEvent.objects.order_by("pk"), (0, 200), strict=True):
        PipelineEvent.objects.filter(pk=event.pk).update(created_at=start + dt.timedelta(seconds=seconds))
    Batch.objects.filter(pk=pipeline.batch_id).update(cost_nanousd=1_250_000_000)
    Job.objects.filter(pk=pipeline.training_job_id).update(
        status="running", progress_done=1500, progress_total=2000, progress_unit="steps", metrics={"eta_seconds": 90.0}
    )
    assert pipeline.training_job_id is not None
    charge(organization, pipeline.training_job_id, Subject.TRAINING_TIME, 500_000_000)
    charge(organization, "job_of_someone_else", Subject.TRAINING_TIME, 7_000_000_000)
    charge(make_organization(), pipeline.batch.job_id if pipeline.batch else "", Subject.BATCH_TIME, 9_000_000_000)

    html = opening(viewer, TABLE, pipeline.pk)

    steps = steps_of(html)
    assert steps[0] == "Answer the prompts succeeded, 3 min 20 s"
    assert re.fullmatch(r"Train running, 1 min 4\d s 1,500 / 2,000 steps About 1 min 30 s left", steps[1])
    assert steps[2:] == ["Evaluate pending", "Check the gate pending", "Deploy pending"]
    text = text_of(html)
    assert "Next: The speculator is measured on prompts that were held out" in text
    assert "1.75 USD so far: 1.25 for tokens, 0.5 for device time" in text
    assert 'aria-current="step"' in html
    assert 'data-live-active="yes"' in html


def test_a_waiting_stage_shows_its_position_and_a_paused_one_the_reason(
    viewer: Client, organization: Organization
) -> None:
    pipeline = advance_to_stage("train", make_pipeline(organization))
    assert "Waiting for a worker, at position 1" in opening(viewer, TABLE, pipeline.pk)

    paused = {"code": "spend_cap_reached", "message": "The cap of 5 USD is reached.", "cap_id": None}
    Job.objects.filter(pk=pipeline.training_job_id).update(status="paused", paused=paused)
    assert "Paused: The cap of 5 USD is reached." in opening(viewer, TABLE, pipeline.pk)


def test_a_live_pipeline_links_to_its_deployment_and_stops_updating_itself(
    viewer: Client, organization: Organization
) -> None:
    pipeline = advance_to_stage("deploy", make_pipeline(organization))
    assert "live as soon as the deployment is ready" in opening(viewer, TABLE, pipeline.pk)
    pipeline = set_deployment_state(pipeline, Deployment.State.READY)

    html = opening(viewer, TABLE, pipeline.pk)

    assert "It is live" in html
    assert "Next:" not in html
    assert [step.split(",")[0].split()[-1] for step in steps_of(html)] == ["succeeded"] * 5
    assert change_path("deployments_deployment", pipeline.deployment_id) in html
    assert change_path("catalog_speculator", pipeline.speculator_id) in html
    assert 'data-live-active="no"' in html


def failed(pipeline: Pipeline) -> Pipeline:
    pipeline = advance_to_stage("train", pipeline)
    return end_job(pipeline, pipeline.training_job, "failed", error={"code": "bug", "message": "The loss is <NaN>."})


def rejected(pipeline: Pipeline) -> Pipeline:
    return end_evaluation(advance_to_stage("evaluate", pipeline), speedup=0.5)


def passed_without_deployment(pipeline: Pipeline) -> Pipeline:
    Pipeline.objects.filter(pk=pipeline.pk).update(deploy=False)
    return end_evaluation(advance_to_stage("evaluate", pipeline))


def cancelled(pipeline: Pipeline) -> Pipeline:
    pipeline_cancel(pipeline=pipeline)
    assert pipeline.batch is not None
    return end_job(pipeline, pipeline.batch.job, "cancelled")


@pytest.mark.parametrize(
    ("end", "sentences", "stages"),
    [
        (failed, ("It has failed.", "bug The loss is &lt;NaN&gt;."), "succeeded failed pending pending pending"),
        (rejected, ("It is rejected", "got 0.5"), "succeeded succeeded succeeded failed skipped"),
        (passed_without_deployment, ("It has succeeded",), "succeeded succeeded succeeded succeeded skipped"),
        (cancelled, ("It was cancelled",), "cancelled pending pending pending pending"),
    ],
)
def test_an_ended_pipeline_says_how_it_ended(
    viewer: Client,
    organization: Organization,
    end: Callable[[Pipeline], Pipeline],
    sentences: tuple[str, ...],
    stages: str,
) -> None:
    pipeline = end(make_pipeline(organization))

    html = opening(viewer, TABLE, pipeline.pk)

    assert [sentence in text_of(html) for sentence in sentences] == [True] * len(sentences)
    assert re.findall(r"console-step-(\w+)", html) == stages.split()
    assert "Next:" not in html


def test_operators_see_the_page_and_other_organizations_do_not(organization: Organization) -> None:
    pipeline = make_pipeline(organization)

    assert "A speculator is trained on the answers." in opening(operator_client(), TABLE, pipeline.pk)
    assert sign_in(make_organization(), "owner").get(change_path(TABLE, pipeline.pk)).status_code == 404
