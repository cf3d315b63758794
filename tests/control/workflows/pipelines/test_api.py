"""The routes of /v1/pipelines."""

import hashlib
import json
from typing import Any

import pytest
from django.test import Client

from control.data.files.models import File
from control.models.catalog.models import Speculator
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import chat_row, make_base_model, make_file, make_organization
from tests.control.workflows.pipelines.helpers import (
    advance_to_stage,
    end_evaluation,
    end_job,
    end_training,
    make_pipeline,
    set_deployment_state,
)
from workers.kinds import REQUESTED_KINDS

pytestmark = pytest.mark.django_db


def request_body(organization: Organization, **values: Any) -> dict[str, Any]:
    prompts = make_file(organization, [chat_row(f"row-{n}") for n in range(10)])
    return {"name": "fast", "model": make_base_model().name, "prompts_file": prompts.pk, **values}


def post(client: Client, body: Any) -> Any:
    return client.post("/v1/pipelines", body, content_type="application/json")


def test_one_post_starts_a_pipeline(client: Client, organization: Organization) -> None:
    response = post(client, request_body(organization))
    body = response.json()
    assert response.status_code == 201
    assert (body["object"], body["status"], body["error"], body["report"]) == ("pipeline", "distilling", None, None)
    assert [(stage["name"], stage["status"]) for stage in body["stages"]] == [
        ("distil", "running"),
        ("train", "pending"),
        ("evaluate", "pending"),
        ("gate", "pending"),
        ("deploy", "pending"),
    ]
    assert body["stages"][0]["job_id"] == Job.objects.get().pk
    assert body["gate"] == {
        "min_speedup": 1.0,
        "baseline": "plain",
        "min_acceptance_length": None,
        "concurrency": None,
        "outputs_equal": True,
    }
    assert client.get(f"/v1/pipelines/{body['id']}").json() == body
    assert client.get("/v1/pipelines").json()["data"] == [body]


def test_a_live_pipeline_shows_its_report_and_times(client: Client, organization: Organization) -> None:
    pipeline = set_deployment_state(advance_to_stage("deploy", make_pipeline(organization)), Deployment.State.READY)
    body = client.get(f"/v1/pipelines/{pipeline.pk}").json()
    assert body["status"] == "live"
    assert body["report"]["speedup"] == 1.5
    assert {stage["status"] for stage in body["stages"]} == {"succeeded"}
    assert all(stage["started_at"] and stage["finished_at"] for stage in body["stages"])
    assert body["deployment_id"] == pipeline.deployment_id


def test_a_pipeline_stored_by_an_older_version_is_shown_unchanged(client: Client, organization: Organization) -> None:
    pipeline = end_evaluation(advance_to_stage("evaluate", make_pipeline(organization)))
    Pipeline.objects.update(training=["medusa"], evaluation="none", gate=1, error={"reason": "slow"})
    Job.objects.update(result=[1], metrics=[2], paused={"code": "spend_cap_reached"})

    body = client.get(f"/v1/pipelines/{pipeline.pk}").json()

    assert (body["training"], body["evaluation"], body["gate"]) == (["medusa"], "none", 1)
    assert (body["error"], body["report"]) == ({"reason": "slow"}, [1])
    assert [stage["metrics"] for stage in body["stages"]] == [[2], [2], [2], {}, {}]
    assert body["stages"][1]["paused"] == {"code": "spend_cap_reached"}
    assert client.get("/v1/pipelines").json()["data"] == [body]


def test_a_rejected_pipeline_shows_the_stage_that_rejected_it(client: Client, organization: Organization) -> None:
    pipeline = end_evaluation(advance_to_stage("evaluate", make_pipeline(organization)), speedup=0.5)
    stages = client.get(f"/v1/pipelines/{pipeline.pk}").json()["stages"]
    assert [stage["status"] for stage in stages] == ["succeeded", "succeeded", "succeeded", "failed", "skipped"]


def test_a_failed_pipeline_can_be_resumed_over_the_api(client: Client, organization: Organization) -> None:
    pipeline = advance_to_stage("train", make_pipeline(organization))
    end_job(pipeline, pipeline.training_job, Job.Status.FAILED, error={"code": "c", "message": "m"})
    failed = client.get(f"/v1/pipelines/{pipeline.pk}").json()
    assert [stage["status"] for stage in failed["stages"]] == ["succeeded", "failed", "pending", "pending", "pending"]
    resumed = client.post(f"/v1/pipelines/{pipeline.pk}/resume").json()
    assert (resumed["status"], resumed["error"]) == ("training", None)
    assert resumed["stages"][1]["status"] == "running"
    assert client.post(f"/v1/pipelines/{pipeline.pk}/resume").status_code == 400


def test_a_pipeline_can_be_cancelled_over_the_api(client: Client, organization: Organization) -> None:
    pipeline = make_pipeline(organization)
    body = client.post(f"/v1/pipelines/{pipeline.pk}/cancel").json()
    assert (body["status"], body["stages"][0]["status"]) == ("cancelled", "cancelled")


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"name": "no spaces"}, 400, "name"),
        ({"name": None}, 400, "name"),
        ({"model": "unknown"}, 404, "model"),
        ({"prompts_file": "file-unknown"}, 404, "prompts_file"),
        ({"held_out_file": "file-unknown"}, 404, "held_out_file"),
        ({"held_out": 0}, 400, "held_out"),
        ({"held_out": 10}, 400, "prompts_file"),
        ({"held_out": 1, "held_out_file": "file-x"}, 400, "held_out"),
        ({"training": {"kind": "magic"}}, 400, "training.kind"),
        ({"training": {"kind": "eagle3", "num_heads": 4}}, 400, "training.num_heads"),
        ({"training": {"kind": "mtp", "steps": 9}}, 400, "training.steps"),
        ({"training": {"learning_rate": "fast"}}, 400, "training.learning_rate"),
        ({"training": {"seed": "x"}}, 400, "training.seed"),
        ({"training": {"seed": 1 << 32}}, 400, "training.seed"),
        ({"evaluation": {"concurrencies": []}}, 400, "evaluation.concurrencies"),
        ({"gate": {"min_speed": 1}}, 400, "gate.min_speed"),
        ({"gate": {"concurrency": 4}}, 400, "gate.concurrency"),
        ({"gate": {"outputs_equal": "adapter"}}, 400, "gate.outputs_equal"),
        ({"training": {"kind": "turbo_lora"}}, 400, "gate.outputs_equal"),
        ({"surprise": 1}, 400, "surprise"),
    ],
)
def test_the_error_for_an_invalid_request_names_the_field_and_creates_nothing(
    client: Client, organization: Organization, values: dict[str, Any], status: int, param: str
) -> None:
    response = post(client, request_body(organization, **values))
    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert not Pipeline.objects.exists()
    assert not Job.objects.exists()


@pytest.mark.parametrize("kind", REQUESTED_KINDS)
def test_every_kind_of_speculator_can_be_trained(client: Client, organization: Organization, kind: str) -> None:
    training = {"kind": kind, "max_seconds": 60, "seed": 1}
    gate = {"outputs_equal": "model_and_adapter"}
    response = post(client, request_body(organization, training=training, gate=gate))
    assert response.status_code == 201
    assert response.json()["training"] == training | {"initial_speculator": None}


def test_training_continues_only_from_a_speculator_of_the_same_kind_and_model(
    client: Client, organization: Organization
) -> None:
    base = make_base_model()
    trained = end_training(advance_to_stage("train", make_pipeline(organization, base_model=base))).speculator
    assert trained is not None

    def create(kind: str, model: str) -> Any:
        body = request_body(organization, model=model, deploy=False)
        return post(client, body | {"training": {"kind": kind, "initial_speculator": trained.pk}})

    assert create("medusa", base.name).status_code == 201
    another = make_base_model("another").name
    for refused in (create("eagle3", base.name), create("auto", base.name), create("medusa", another)):
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "training.initial_speculator")
    Speculator.objects.update(organization=make_organization("foreign"))
    assert create("medusa", base.name).status_code == 404


def test_the_name_of_an_existing_deployment_is_refused_for_a_pipeline_that_would_deploy(
    client: Client, organization: Organization
) -> None:
    Deployment.objects.create(organization=organization, name="fast", base_model=make_base_model())
    assert post(client, request_body(organization)).status_code == 409
    assert post(client, request_body(organization, deploy=False)).status_code == 201


@pytest.mark.parametrize(("method", "path"), [("get", ""), ("post", "/cancel"), ("post", "/resume")])
def test_another_organizations_pipeline_is_not_found(
    client: Client, other_organization: Organization, method: str, path: str
) -> None:
    pipeline = make_pipeline(other_organization)
    assert getattr(client, method)(f"/v1/pipelines/{pipeline.pk}{path}").status_code == 404
    assert client.get("/v1/pipelines").json()["data"] == []
    assert Pipeline.objects.get().status == "distilling"


def test_another_organizations_file_cannot_be_used(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    foreign = make_file(other_organization, [chat_row(f"row-{n}") for n in range(10)])
    for field in ("prompts_file", "held_out_file"):
        response = post(client, request_body(organization, **{field: foreign.pk}))
        assert (response.status_code, response.json()["error"]["param"]) == (404, field)


def test_a_pipeline_reports_held_out_prompts_that_are_training_prompts(
    client: Client, organization: Organization
) -> None:
    prompts = make_file(organization, [chat_row(f"row-{n}", content=f"prompt {n}") for n in range(10)])
    held_out = make_file(organization, [chat_row(f"held-{n}", content=f"prompt {n}") for n in range(7, 12)])

    body = post(client, request_body(organization, prompts_file=prompts.pk, held_out_file=held_out.pk)).json()

    assert body["held_out_duplicates"] == 3
    assert body["contamination"]["exact"]["num_rows"] == 3
    assert body["contamination"]["exact"]["examples"][0] == {"line": 8, "other_line": 1}
    assert (body["contamination"]["policy"], body["contamination"]["num_dropped"]) == ("warn", 0)


def test_the_policy_drop_trains_on_a_new_file_without_the_held_out_prompts(
    client: Client, organization: Organization
) -> None:
    prompts = make_file(organization, [chat_row(f"row-{n}", content=f"prompt {n}") for n in range(10)])
    held_out = make_file(organization, [chat_row(f"held-{n}", content=f"prompt {n}") for n in range(7, 12)])
    files = {"prompts_file": prompts.pk, "held_out_file": held_out.pk}

    body = post(client, request_body(organization, **files, on_contamination="drop")).json()

    assert (body["contamination"]["num_dropped"], body["held_out_duplicates"]) == (3, 0)
    assert body["held_out_file"] == held_out.pk
    assert body["prompts_file"] != prompts.pk
    content = client.get(f"/v1/files/{body['prompts_file']}/content").getvalue()
    assert [json.loads(line)["custom_id"] for line in content.splitlines() if line] == [f"row-{n}" for n in range(7)]
    assert Batch.objects.get(pk=body["batch_id"]).input_file_id == body["prompts_file"]


def test_the_policy_refuse_creates_nothing_for_contaminated_prompts(client: Client, organization: Organization) -> None:
    prompts = make_file(organization, [chat_row(f"row-{n}", content=f"prompt {n % 5}") for n in range(10)])

    body = request_body(organization, prompts_file=prompts.pk, held_out=2, on_contamination="refuse")
    num_files = File.objects.count()

    response = post(client, body)

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "contaminated_held_out", "prompts_file")
    assert not Pipeline.objects.exists()
    assert File.objects.count() == num_files


@pytest.mark.parametrize("policy", ["warn", "drop", "refuse"])
def test_a_held_out_file_with_the_content_of_the_prompts_file_is_refused(
    client: Client, organization: Organization, policy: str
) -> None:
    rows = [chat_row(f"row-{n}", content=f"prompt {n}") for n in range(10)]
    prompts, copy = make_file(organization, rows), make_file(organization, rows)
    for held_out in (prompts, copy):
        files = {"prompts_file": prompts.pk, "held_out_file": held_out.pk}
        response = post(client, request_body(organization, **files, on_contamination=policy))
        error = response.json()["error"]
        assert (response.status_code, error["code"], error["param"]) == (400, "no_held_out_prompts", "held_out_file")


def test_prompts_of_a_distillation_cannot_be_dropped(client: Client, organization: Organization) -> None:
    values = {"prompts_file": None, "distillation_id": "dist_1", "held_out_file": "file-1"}
    response = post(client, request_body(organization, **values, on_contamination="drop"))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "on_contamination")


def test_the_error_for_an_invalid_held_out_row_has_the_line_number_of_the_customers_file(
    client: Client, organization: Organization
) -> None:
    rows = [chat_row(f"row-{n}", model="unknown") for n in range(10)]
    prompts = make_file(organization, rows)
    # The row whose id has the smallest hash is held out.
    held_out = min(range(10), key=lambda n: hashlib.sha256(f"row-{n}".encode()).digest())

    response = post(client, request_body(organization, prompts_file=prompts.pk, held_out=1))

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, "model_not_found", "prompts_file")
    assert error["message"].startswith(f"prompts_file: line {held_out + 1}: ")


def test_a_refused_pipeline_leaves_no_files_behind(client: Client, organization: Organization) -> None:
    prompts = make_file(organization, [chat_row(f"row-{n}", model="unknown") for n in range(10)])

    post(client, {"name": "fast", "model": make_base_model().name, "prompts_file": prompts.pk})

    assert [file["id"] for file in client.get("/v1/files").json()["data"]] == [prompts.pk]
