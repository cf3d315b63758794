"""A quote of a pipeline estimates each stage and states the basis of the estimate. Its cap covers all stages."""

import datetime as dt
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from control.billing.ledger.models import Subject
from control.billing.spending.models import QuotedUse
from control.billing.spending.quoted import quoted_use_add
from control.billing.usage.credits import credit_add
from control.billing.usage.device_time import device_time_add
from control.billing.usage.services import price_set
from control.models.catalog.models import BaseModel
from control.queue.devices.services import devices_register
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_pause
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_stop
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.tenants.quotas.models import Limits
from control.workflows.batches.caps import batch_cap_reached, quote_cap_reached, quote_spent_nanousd
from control.workflows.batches.models import Batch
from control.workflows.pipelines.endpoint_caps import endpoints_review
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.stages import pipeline_advance
from control.workflows.quotes.caps import job_cap_reached, jobs_review
from control.workflows.quotes.models import Quote
from control.workflows.quotes.services import quote_cap_set
from control.workflows.quotes.stages import DatasetFacts, Interval, PilotFacts, estimate_stages
from tests.control.billing.ledger.test_ledger import age_claim
from tests.control.billing.spending.support import make_quote
from tests.control.factories import make_base_model
from tests.control.queue.devices.helpers import gpu, state
from tests.control.queue.jobs.helpers import claim
from tests.control.workflows.pipelines.helpers import (
    advance_to_stage,
    end_evaluation,
    make_pipeline,
    set_deployment_state,
)
from tests.control.workflows.quotes.test_quotes import INPUT_TOKENS, NUM_ROWS, create_quote, end_pilot, make_dataset
from tests.control.world import World

DOLLAR = 10**9  # in nanodollars
HOUR = dt.timedelta(hours=1)
WORK = {
    "training": {"kind": "medusa", "max_seconds": 600},
    "evaluation": {"concurrencies": [1, 3], "max_tokens": 15, "held_out": 6},
    "endpoint": {"replicas": 2, "hours": 100},
}


@pytest.fixture
def model(db: None) -> BaseModel:
    price_set(base_model_id="", input_nanousd=1000, output_nanousd=4000, batch_percent=50)
    call_command("device_price_set", "cuda", "3.60")  # a thousandth of a dollar per second
    return make_base_model("m")


def use_device(
    subject: Subject,
    object_id: str,
    organization: Organization,
    seconds: float,
    sequence: str = "1",
    hour_nanousd: int | None = None,
) -> None:
    now = timezone.now()
    with transaction.atomic():
        device_time_add(
            caller=Caller(organization_id=organization.pk),
            subject=subject,
            object_id=object_id,
            sequence=sequence,
            device_kind="cuda",
            since=now - dt.timedelta(seconds=seconds),
            until=now,
            hour_nanousd=hour_nanousd,
        )


def end_pilot_job(quote: Any, organization: Organization, seconds: float) -> None:
    batch = Batch.objects.get(pk=quote["pilot_batch_id"])
    use_device(Subject.BATCH_TIME, batch.job_id, organization, seconds)
    Job.objects.filter(pk=batch.job_id).update(status=Job.Status.SUCCEEDED)


def test_a_quote_of_a_pipeline_has_a_line_for_each_stage_and_adds_them_up(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    quote = create_quote(client, make_dataset(organization, model), pipeline=WORK, cap=50)
    end_pilot(quote, [10, 20, 30])
    waiting = client.get(f"/v1/quotes/{quote['id']}").json()
    assert (waiting["status"], waiting["stages"], waiting["cost"]) == ("measuring", None, None)
    end_pilot_job(quote, organization, 12)

    ready = client.get(f"/v1/quotes/{quote['id']}").json()

    stages = {stage["name"]: stage for stage in ready["stages"]}
    assert list(stages) == ["distil", "train", "evaluate", "endpoint"]
    tokens = (INPUT_TOKENS * 500 + 20 * NUM_ROWS * 2000) / 1e9
    distil = stages["distil"]
    # The pilot took 12 seconds for 3 rows, so 100 rows take between 12 seconds and 12 * 100 / 3 = 400 seconds.
    assert (distil["device_seconds_low"], distil["device_seconds"], distil["device_seconds_high"]) == (12, 206, 400)
    assert distil["cost"]["value"] == pytest.approx(tokens + 0.206)
    assert "pilot of 3 rows: 12.0 s of device time" in distil["rests_on"]
    train = stages["train"]
    assert (train["device_seconds_low"], train["device_seconds"], train["device_seconds_high"]) == (12, 612, 1000)
    assert train["cost"]["value"] == pytest.approx(0.612)
    assert train["rests_on"][:2] == ["kind medusa", "limit max_seconds: 600 s"]
    assert train["price_per_device_hour"]["value"] == 3.6
    endpoint = stages["endpoint"]
    assert endpoint["cost_low"]["value"] == endpoint["cost"]["value"] == endpoint["cost_high"]["value"] == 2 * 100 * 3.6
    for name in ("cost_low", "cost", "cost_high"):
        assert ready[name]["value"] == pytest.approx(sum(stage[name]["value"] for stage in ready["stages"]))
    assert ready["pipeline"]["training"]["max_seconds"] == 600
    assert client.get("/v1/quotes").json()["data"] == [ready]


def test_an_evaluation_is_estimated_between_a_speed_that_rises_with_the_concurrency_and_one_that_falls(
    db: None,
) -> None:
    pilot = PilotFacts(
        num_rows=4,
        device_seconds=8.0,  # 10 tokens per second
        device_kind="cuda",
        hour_nanousd=3600 * DOLLAR,
        endpoint_hour_nanousd=None,
        answer_tokens=Interval(10.0, 20.0, 40.0),
    )
    dataset = DatasetFacts(num_rows=50, input_nanousd=0, output_nanousd=0)
    evaluation = {"concurrencies": [1, 8], "max_tokens": 30, "held_out": None}
    work = {"training": {"kind": "medusa", "max_seconds": 1.0}, "evaluation": evaluation, "endpoint": None}

    (line,) = (each for each in estimate_stages(work, pilot, dataset) if each["name"] == "evaluate")

    low, expected, high = line["device_seconds"]
    # At best, each of the 5 answers has 10 tokens. The speed equals the pilot's at concurrency 1 and doubles at 8.
    assert low == pytest.approx(3 * (5 * 10 / 10 + 5 * 10 / 20))
    # At worst, each answer has 30 tokens. The speed is a quarter of the pilot's at concurrency 1 and equals it at 8. In
    # addition, each arm takes 8 seconds to load.
    assert high == pytest.approx(3 * (5 * 30 / 2.5 + 5 * 30 / 10 + 8))
    assert expected == pytest.approx((low + high) / 2)
    assert line["nanousd"] == [round(each * DOLLAR) for each in (low, expected, high)]

    evaluation["compare_with"] = ["suffix", "spec_1"]
    (more,) = (each for each in estimate_stages(work, pilot, dataset) if each["name"] == "evaluate")

    assert more["device_seconds"] == pytest.approx([5 / 3 * each for each in line["device_seconds"]])
    assert "5 arms" in more["rests_on"]


def test_the_pilot_of_a_quote_with_hardware_runs_on_this_hardware_and_sets_the_price_of_the_endpoint(
    client: Client, organization: Organization, model: BaseModel, settings: Settings
) -> None:
    state(settings, gpu(80, price_per_hour=7.2))
    devices_register()
    work = {**WORK, "hardware": "cuda"}
    quote = create_quote(client, make_dataset(organization, model), pipeline=work)
    assert Batch.objects.get(pk=quote["pilot_batch_id"]).job.hardware == "cuda"
    end_pilot(quote, [10, 20, 30])
    batch = Batch.objects.get(pk=quote["pilot_batch_id"])
    use_device(Subject.BATCH_TIME, batch.job_id, organization, 12, hour_nanousd=72 * DOLLAR // 10)
    Job.objects.filter(pk=batch.job_id).update(status=Job.Status.SUCCEEDED)

    ready = client.get(f"/v1/quotes/{quote['id']}").json()

    assert {stage["name"]: stage["price_per_device_hour"]["value"] for stage in ready["stages"]} == dict.fromkeys(
        ("distil", "train", "evaluate", "endpoint"), 7.2
    )
    refused = client.post(
        "/v1/quotes",
        {"dataset_id": quote["dataset_id"], "pipeline": {**work, "hardware": "TPU"}},
        content_type="application/json",
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "pipeline.hardware")


def test_the_canary_of_a_quoted_endpoint_counts_towards_the_cap(organization: Organization, model: BaseModel) -> None:
    world = World(organization)
    quote = make_quote(organization, model, cap_nanousd=DOLLAR)
    quoted_use_add(organization_id=organization.pk, quote_id=quote.pk, object_id=world.deployment.pk)
    canary = world.rollout.canary

    use_device(Subject.ENDPOINT_TIME, canary.pk, organization, 1000)

    assert quote_spent_nanousd(quote.pk) == DOLLAR
    assert quote_cap_reached(quote.pk) is not None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"basis": "history"}, "basis"),
        ({"pipeline": {"training": {"kind": "medusa"}}}, "pipeline.training.max_seconds"),
        ({"pipeline": {"training": {"kind": "none", "max_seconds": 9}}}, "pipeline.training.kind"),
        ({"pipeline": {"training": {"max_seconds": 9}, "endpoint": {"hours": 745}}}, "pipeline.endpoint.hours"),
    ],
)
def test_a_pipeline_that_cannot_be_estimated_is_refused(
    client: Client, organization: Organization, model: BaseModel, body: dict[str, Any], param: str
) -> None:
    refused = create_quote(client, make_dataset(organization, model), status=400, **{"pipeline": WORK, **body})

    assert refused["error"]["param"] == param
    assert not Quote.objects.exists()


@pytest.fixture
def quoted(organization: Organization, model: BaseModel) -> Pipeline:
    """A pipeline with a quote whose cap is 10 dollars."""
    quote = make_quote(organization, model, cap_nanousd=10 * DOLLAR)
    return make_pipeline(organization, base_model=model, quote_id=quote.pk)


def set_cap(pipeline: Pipeline, nanousd: int | None) -> None:
    quote_cap_set(quote=Quote.objects.get(pk=pipeline.quote_id), nanousd=nanousd)


def job_of(pipeline: Pipeline) -> Job:
    job = {"training": pipeline.training_job, "evaluating": pipeline.evaluation_job}[pipeline.status]
    assert job is not None
    return job


def pause(job: Job) -> None:
    """Pauses a job as a worker does."""
    reached = job_cap_reached(job)
    assert reached is not None
    assert job_pause(claim=claim(job), why=reached.as_reason())


def test_the_device_time_of_every_stage_counts_and_that_of_other_pipelines_does_not(
    organization: Organization, quoted: Pipeline
) -> None:
    quote_id = quoted.quote_id or ""
    other = make_pipeline(organization, base_model=quoted.base_model, name="other")
    assert quoted.batch is not None
    assert other.batch is not None
    use_device(Subject.BATCH_TIME, quoted.batch.job_id, organization, 100)
    use_device(Subject.BATCH_TIME, other.batch.job_id, organization, 5000)
    Batch.objects.filter(pk=quoted.batch_id).update(cost_nanousd=7)
    assert quote_spent_nanousd(quote_id) == DOLLAR // 10 + 7
    pipeline = advance_to_stage("train", quoted)
    use_device(Subject.TRAINING_TIME, job_of(pipeline).pk, organization, 200)
    pipeline = advance_to_stage("evaluate", pipeline_fresh(quoted))
    use_device(Subject.EVALUATION_TIME, job_of(pipeline).pk, organization, 300)
    pipeline = end_evaluation(pipeline)
    use_device(Subject.ENDPOINT_TIME, pipeline.deployment_id or "", organization, 400)

    assert quote_spent_nanousd(quote_id) == DOLLAR + 7
    assert QuotedUse.objects.filter(quote_id=quote_id).count() == 4


def test_a_running_attempt_and_a_credit_count_towards_the_cap(organization: Organization, quoted: Pipeline) -> None:
    call_command("device_price_set", "cpu", "3.60")
    job = job_of(advance_to_stage("train", quoted))
    claim(job)
    age_claim(job, 1000)
    Job.objects.filter(pk=job.pk).update(lease_until=timezone.now() + HOUR)
    assert quote_spent_nanousd(quoted.quote_id or "") == pytest.approx(DOLLAR, rel=0.01)

    Job.objects.filter(pk=job.pk).update(status=Job.Status.FAILED)
    use_device(Subject.TRAINING_TIME, job.pk, organization, 2000)
    with transaction.atomic():
        values: Any = {"sequence": "1", "percent": 50, "reason": "attempt_failed"}
        credit_add(subject=Subject.TRAINING_TIME, object_id=job.pk, **values)

    assert quote_spent_nanousd(quoted.quote_id or "") == DOLLAR


@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_a_stage_paused_at_the_cap_continues_when_the_cap_is_raised(
    client: Client, organization: Organization, quoted: Pipeline, stage: str
) -> None:
    pipeline = advance_to_stage(stage, quoted)
    assert job_cap_reached(job_of(pipeline)) is None
    use_device(Subject.TRAINING_TIME, pipeline.training_job_id or "", organization, 10_000)
    pause(job_of(pipeline))
    shown = client.get(f"/v1/pipelines/{pipeline.pk}").json()
    (running,) = (each for each in shown["stages"] if each["status"] == "running")
    assert (running["paused"]["code"], running["paused"]["cap_id"]) == ("spend_cap_reached", quoted.quote_id)
    assert "10 USD of the quote's cap of 10 USD" in running["paused"]["message"]

    jobs_review()
    set_cap(pipeline, 10 * DOLLAR)
    assert job_of(pipeline_fresh(pipeline)).status == Job.Status.PAUSED
    if stage == "train":
        set_cap(pipeline, 11 * DOLLAR)
    else:  # the cap was removed while the worker paused the job
        Quote.objects.update(cap_nanousd=None)
        jobs_review()

    assert job_of(pipeline_fresh(pipeline)).status == Job.Status.QUEUED


def test_training_counts_towards_the_cap_of_a_batch_with_the_same_quote(
    organization: Organization, quoted: Pipeline
) -> None:
    assert quoted.batch is not None
    quoted.batch.quote = Quote.objects.get(pk=quoted.quote_id)
    assert batch_cap_reached(quoted.batch) is None
    pipeline = advance_to_stage("train", quoted)
    use_device(Subject.TRAINING_TIME, job_of(pipeline).pk, organization, 10_000)

    assert batch_cap_reached(quoted.batch) is not None


def test_no_endpoint_is_created_at_the_cap_until_it_is_raised(
    client: Client, organization: Organization, quoted: Pipeline
) -> None:
    pipeline = advance_to_stage("evaluate", quoted)
    use_device(Subject.EVALUATION_TIME, job_of(pipeline).pk, organization, 10_000)

    pipeline = end_evaluation(pipeline)

    assert (pipeline.status, pipeline.deployment) == ("deploying", None)
    assert client.get(f"/v1/pipelines/{pipeline.pk}").json()["paused"]["cap_id"] == quoted.quote_id
    set_cap(pipeline, 11 * DOLLAR)
    pipeline = pipeline_advance(pipeline=pipeline)
    assert pipeline.deployment is not None
    assert pipeline.paused is None


def test_an_endpoint_is_stopped_at_the_cap_and_started_when_it_is_raised(
    client: Client, organization: Organization, quoted: Pipeline
) -> None:
    pipeline = set_deployment_state(advance_to_stage("deploy", quoted), Deployment.State.READY)
    assert pipeline.status == "live"

    def desired() -> str:
        endpoints_review()
        return Deployment.objects.get(pk=pipeline.deployment_id).desired_state

    assert desired() == "running"
    use_device(Subject.ENDPOINT_TIME, pipeline.deployment_id or "", organization, 10_000)
    assert (desired(), desired()) == ("stopped", "stopped")
    assert client.get(f"/v1/pipelines/{pipeline.pk}").json()["paused"]["cap_id"] == quoted.quote_id
    set_cap(pipeline, 11 * DOLLAR)
    assert (desired(), desired()) == ("running", "running")
    assert pipeline_fresh(pipeline).paused is None

    deployment_stop(deployment=Deployment.objects.get(pk=pipeline.deployment_id))
    assert desired() == "stopped", "an endpoint that its customer has stopped stays stopped"


def test_a_pipeline_says_why_its_endpoint_is_not_started_after_the_cap_is_raised(
    client: Client, organization: Organization, quoted: Pipeline
) -> None:
    pipeline = set_deployment_state(advance_to_stage("deploy", quoted), Deployment.State.READY)
    use_device(Subject.ENDPOINT_TIME, pipeline.deployment_id or "", organization, 10_000)
    endpoints_review()
    set_deployment_state(pipeline, Deployment.State.STOPPED)
    other = Deployment.objects.create(
        organization=organization, name="other", base_model=quoted.base_model, state=Deployment.State.READY
    )
    Limits.objects.update_or_create(pk=organization.pk, defaults={"devices": 1})
    set_cap(pipeline, 11 * DOLLAR)

    endpoints_review()

    paused = client.get(f"/v1/pipelines/{pipeline.pk}").json()["paused"]
    assert (paused["code"], paused["cap_id"]) == ("devices_quota_exceeded", quoted.quote_id)
    deployment_stop(deployment=other)
    Deployment.objects.filter(pk=other.pk).update(state=Deployment.State.STOPPED)
    endpoints_review()
    assert pipeline_fresh(pipeline).paused is None
    assert Deployment.objects.get(pk=pipeline.deployment_id).desired_state == "running"


def test_a_page_of_quotes_needs_the_same_number_of_queries_for_any_number_of_quotes(
    client: Client, organization: Organization, quoted: Pipeline
) -> None:
    assert quoted.batch is not None
    use_device(Subject.BATCH_TIME, quoted.batch.job_id, organization, 100)
    client.get("/v1/quotes")  # also records that the key is used
    counts = []
    for _ in range(2):
        for _ in range(3):
            make_quote(organization, quoted.base_model)
        with CaptureQueriesContext(connection) as queries:
            rows = client.get("/v1/quotes").json()["data"]
        counts.append(len(queries))
        assert {row["id"]: row["spent"]["value"] for row in rows if row["spent"]["value"]} == {quoted.quote_id: 0.1}

    assert counts[0] == counts[1]
