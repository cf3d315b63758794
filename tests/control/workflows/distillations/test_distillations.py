"""Distillations, which record a model's answers as training data, and pipelines that start from a distillation."""

from typing import Any

import pytest
from django.test import Client

from control.billing.usage.models import Attribution
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.tenants.administration.services import project_create
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.models import Batch
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.stages import pipelines_reconcile
from tests.control.factories import chat_row, make_base_model, make_file, make_key
from tests.control.workflows.pipelines.helpers import end_training


@pytest.fixture
def model(db: None) -> BaseModel:
    return make_base_model("m")


def post(client: Client, path: str, body: dict[str, Any], *, status: int = 201) -> Any:
    response = client.post(path, body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def create_distillation(client: Client, organization: Organization, **body: Any) -> Any:
    prompts = make_file(organization, [chat_row(f"row-{number}") for number in range(10)])
    return post(client, "/v1/distillations", {"model": "m", "prompts_file": prompts.pk, **body})


def end_batch_of(distillation: Any, status: str = Batch.Status.COMPLETED, tokens_key: str = "tokens.jsonl") -> None:
    Batch.objects.filter(pk=distillation["batch_id"]).update(status=status, tokens_key=tokens_key)


def pipeline_body(organization: Organization, distillation: Any, **body: Any) -> dict[str, Any]:
    held_out = make_file(organization, [chat_row("held-out", content="3+3?")])
    return {
        "name": "fast", "model": "m", "distillation_id": distillation["id"], "held_out_file": held_out.pk, **body
    }  # fmt: skip


def test_a_distillation_creates_a_batch_for_its_model(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    made = create_distillation(client, organization, metadata={"for": "tests"})

    batch = client.get(f"/v1/batches/{made['batch_id']}").json()
    assert (made["status"], made["is_trainable"]) == ("validating", False)
    assert (batch["model"], batch["metadata"], batch["input_file_id"]) == ("m", {"for": "tests"}, made["prompts_file"])
    assert client.get("/v1/distillations").json()["data"] == [made]
    end_batch_of(made)
    assert client.get(f"/v1/distillations/{made['id']}").json()["is_trainable"]


def test_cancelling_a_distillation_cancels_its_batch(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    made = create_distillation(client, organization)

    cancelled = post(client, f"/v1/distillations/{made['id']}/cancel", {}, status=200)

    assert cancelled["status"] == "cancelling"
    assert Job.objects.get().cancel_requested_at is not None


def test_one_distillation_trains_two_speculators(client: Client, organization: Organization, model: BaseModel) -> None:
    made = create_distillation(client, organization)
    end_batch_of(made, Batch.Status.CANCELLED)  # the answers of a cancelled batch can still be used for training

    for kind in ("medusa", "eagle3"):
        body = post(client, "/v1/pipelines", pipeline_body(organization, made, name=kind, training={"kind": kind}))
        assert (body["status"], body["batch_id"]) == ("training", made["batch_id"])
        assert [stage["status"] for stage in body["stages"]][:3] == ["skipped", "running", "pending"]
        assert end_training(Pipeline.objects.get(pk=body["id"])).status == "evaluating"
    keys = {job.params["tokens_key"] for job in Job.objects.filter(kind=Job.Kind.TRAINING)}
    assert keys == {"tokens.jsonl"}
    assert Batch.objects.count() == 1


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"prompts_file": "file-1"}, 400, "prompts_file"),
        ({"distillation_id": None}, 400, "prompts_file"),
        ({"held_out_file": None}, 400, "held_out_file"),
        ({"model": "other"}, 400, "distillation_id"),
        ({"distillation_id": "distill_none"}, 404, "distillation_id"),
        ({}, 409, "distillation_id"),  # the batch of the distillation has not ended
    ],
)
def test_a_pipeline_with_an_unsuitable_distillation_is_refused(
    client: Client, organization: Organization, model: BaseModel, change: dict[str, Any], status: int, param: str
) -> None:
    make_base_model("other")
    made = create_distillation(client, organization)
    if status != 409:
        end_batch_of(made)

    refused = post(client, "/v1/pipelines", pipeline_body(organization, made, **change), status=status)

    assert refused["error"]["param"] == param
    assert not Pipeline.objects.exists()


def test_a_distillation_of_another_organization_is_not_found(
    client: Client, organization: Organization, other_organization: Organization, model: BaseModel
) -> None:
    _, token = make_key(other_organization)
    other_client = Client(headers={"Authorization": f"Bearer {token}"})
    made = create_distillation(other_client, other_organization)
    end_batch_of(made)

    refused = post(client, "/v1/pipelines", pipeline_body(organization, made), status=404)

    assert refused["error"]["code"] == "distillation_not_found"


def test_usage_of_all_stages_of_a_pipeline_is_attributed_to_the_key_that_created_it(
    organization: Organization, model: BaseModel
) -> None:
    project = project_create(organization=organization, name="p")
    key, token = make_key(organization, project=project)
    client = Client(headers={"Authorization": f"Bearer {token}"})
    with as_tenant(organization.pk, project.pk):
        prompts = make_file(organization, [chat_row(f"row-{number}") for number in range(10)])
    body = post(client, "/v1/pipelines", {"name": "fast", "model": "m", "prompts_file": prompts.pk})
    pipeline = Pipeline.objects.get(pk=body["id"])
    Batch.objects.filter(pk=pipeline.batch_id).update(status=Batch.Status.COMPLETED, tokens_key="t")
    pipelines_reconcile()  # runs as in a worker, without a request that names the organization
    end_training(Pipeline.objects.get(pk=pipeline.pk))

    kinds = set(Job.objects.values_list("kind", flat=True))
    assert kinds == {"batch", "training", "evaluation"}
    attributions = Attribution.objects.filter(job_id__in=Job.objects.values("pk"))
    assert [(attribution.api_key_id, attribution.project_id) for attribution in attributions] == [
        (key.pk, key.project_id)
    ] * 3


def test_options_for_truncated_answers_are_passed_to_the_batch_whose_counts_the_distillation_shows(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    made = create_distillation(client, organization, on_truncation="continue", max_continued_tokens=4096)

    assert (made["on_truncation"], made["max_continued_tokens"], made["truncated"]) == ("continue", 4096, None)
    batch = Batch.objects.get(pk=made["batch_id"])
    assert (batch.on_truncation, batch.max_continued_tokens) == ("continue", 4096)
    counts = {"in_trace": 3, "in_answer": 1, "continued": 4, "unfinished": 1}
    Batch.objects.filter(pk=batch.pk).update(truncated=counts)
    assert client.get(f"/v1/distillations/{made['id']}").json()["truncated"] == {**counts, "dropped": 0}
    assert create_distillation(client, organization)["on_truncation"] == "keep"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"on_truncation": "cut"}, "on_truncation"),
        ({"on_truncation": None}, "on_truncation"),
        ({"max_continued_tokens": 10}, "max_continued_tokens"),
        ({"on_truncation": "drop", "max_continued_tokens": 10}, "max_continued_tokens"),
        ({"on_truncation": "continue", "max_continued_tokens": 0}, "max_continued_tokens"),
        ({"on_truncation": "continue", "max_continued_tokens": 1 << 40}, "max_continued_tokens"),
    ],
)
def test_options_for_truncated_answers_that_are_invalid_or_would_have_no_effect_are_refused(
    client: Client, organization: Organization, model: BaseModel, options: dict[str, Any], param: str
) -> None:
    prompts = make_file(organization, [chat_row("row")])
    for path, prefix, body in (
        ("/v1/distillations", "", options),
        ("/v1/pipelines", "distillation.", {"name": "fast", "held_out": 1, "distillation": options}),
    ):
        error = post(client, path, {"model": "m", "prompts_file": prompts.pk, **body}, status=400)["error"]
        assert error["param"] == prefix + param
    assert not Batch.objects.exists()


@pytest.mark.parametrize("on_truncation", ["keep", "drop", "continue"])
def test_training_drops_truncated_answers_only_if_the_distillation_requests_it(
    client: Client, organization: Organization, model: BaseModel, on_truncation: str
) -> None:
    made = create_distillation(client, organization, on_truncation=on_truncation)
    end_batch_of(made)

    pipeline = post(client, "/v1/pipelines", pipeline_body(organization, made))

    job = Pipeline.objects.get(pk=pipeline["id"]).training_job
    assert job is not None
    assert job.params["drop_cut_answers"] is (on_truncation == "drop")
    body = {**pipeline_body(organization, made), "name": "other", "distillation": {"on_truncation": "keep"}}
    assert post(client, "/v1/pipelines", body, status=400)["error"]["param"] == "distillation"


def test_a_pipeline_passes_its_options_for_truncated_answers_to_its_batch(
    client: Client, organization: Organization, model: BaseModel
) -> None:
    prompts = make_file(organization, [chat_row(f"row-{number}") for number in range(12)])
    options = {"on_truncation": "continue", "max_continued_tokens": 64}
    body = {"name": "fast", "model": "m", "prompts_file": prompts.pk, "held_out": 2, "distillation": options}

    made = post(client, "/v1/pipelines", body)

    batch = Batch.objects.get(pk=made["batch_id"])
    assert made["distillation"] == options
    assert (batch.on_truncation, batch.max_continued_tokens) == ("continue", 64)
