"""Pipelines that train on answers that were made elsewhere."""

import json
from typing import Any

import pytest
from django.test import Client

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.queue.jobs.protocol import LABELS_AND_HARDWARE
from control.tenants.accounts.models import Organization
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.services import pipeline_cancel, pipeline_resume
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization
from tests.control.workflows.pipelines.helpers import advance_to_stage, end_training
from tests.control.workflows.pipelines.test_sensitive import content_of, create

pytestmark = pytest.mark.django_db


def chats(num: int = 20, **members: Any) -> list[dict[str, Any]]:
    return [
        {
            "messages": [
                {"role": "user", "content": f"prompt {number}"},
                {"role": "assistant", "content": f"answer {number}"},
            ],
            **members,
        }
        for number in range(num)
    ]


@pytest.fixture
def base_model(organization: Organization) -> BaseModel:
    return make_base_model(organization=organization)


@pytest.fixture
def body(organization: Organization, base_model: BaseModel) -> dict[str, Any]:
    logs = make_file(organization, chats(), purpose="fine-tune", filename="logs.jsonl")
    return {"model": base_model.name, "prompts_file": logs.pk, "answers": "file"}


def test_a_pipeline_starts_with_training_on_the_given_answers_that_are_not_held_out(
    client: Client, body: dict[str, Any]
) -> None:
    made = create(client, **body, held_out=4)

    assert (made["status"], made["answers"], made["batch_id"]) == ("training", "file", None)
    assert [stage["status"] for stage in made["stages"][:3]] == ["skipped", "running", "pending"]
    job = Job.objects.get()
    assert job.kind == Job.Kind.TRAINING
    assert not {"tokens_key", "drop_cut_answers"} & job.params.keys()
    with get_storage().open(job.params["answers_key"]) as source:
        rows = [json.loads(line) for line in source.read().splitlines() if line.strip()]
    assert job.params["answers_key"] == File.objects.get(pk=made["prompts_file"]).storage_key
    held_out = [json.loads(line) for line in content_of(made["held_out_file"]).splitlines() if line.strip()]
    assert (len(rows), len(held_out)) == (16, 4)
    assert not {row["custom_id"] for row in rows} & {row["custom_id"] for row in held_out}
    for row in rows:
        number = int(row["custom_id"].removeprefix("row-")) - 1
        assert row["body"] == {"messages": [{"role": "user", "content": f"prompt {number}"}]}
        assert row["answer"]["message"]["content"] == f"answer {number}"
    row = Pipeline.objects.get()
    with get_storage().open(f"{row.organization_id}/pipelines/{row.pk}/held_out.jsonl") as source:
        assert b"answer" not in source.read()  # workers that evaluate do not see the given answers


def test_the_later_stages_are_the_same_as_in_other_pipelines_and_a_cancelled_training_is_resumed(
    client: Client, body: dict[str, Any]
) -> None:
    pipeline = Pipeline.objects.get(pk=create(client, **body)["id"])
    resumed = pipeline_resume(pipeline=pipeline_cancel(pipeline=pipeline))
    assert resumed.status == "training"
    assert resumed.training_job is not None
    assert resumed.training_job.params["answers_key"] == pipeline.prompts_file.storage_key
    assert end_training(resumed).status == "evaluating"
    response = client.get(f"/v1/pipelines/{pipeline.pk}").json()
    assert response["cost"]["value"] == 0


def test_given_answers_are_compared_with_held_out_prompts_and_redacted(
    client: Client, organization: Organization, body: dict[str, Any]
) -> None:
    rows = chats()
    rows[3]["messages"][1]["content"] = "write to ann@example.com"
    held_out = make_file(organization, [chat_row(f"held-{n}", content=f"prompt {n}") for n in (0, 5, 99)])
    logs = make_file(organization, rows, purpose="fine-tune")
    files = {"prompts_file": logs.pk, "held_out_file": held_out.pk}
    made = create(client, **{**body, **files}, on_contamination="drop", on_sensitive="redact")

    assert made["contamination"]["num_dropped"] == 2
    assert made["sensitive"]["prompts_file"]["num_found"] == 1
    lines = [line for line in content_of(made["prompts_file"]).splitlines() if line.strip()]
    assert len(lines) == 18
    answers = {json.loads(line)["custom_id"]: json.loads(line)["answer"]["message"]["content"] for line in lines}
    assert answers["row-4"] == "write to <EMAIL_1>"
    assert not {"row-1", "row-6"} & answers.keys()


@pytest.mark.parametrize(
    ("values", "code", "param"),
    [
        ({"answers": "both"}, "invalid_value", "answers"),
        ({"distillation": {"on_truncation": "drop"}}, "invalid_value", "distillation"),
        ({"prompts_file": None, "distillation_id": "distill_1"}, "invalid_value", "answers"),
    ],
)
def test_parameters_that_contradict_given_answers_are_refused(
    client: Client, body: dict[str, Any], values: dict[str, Any], code: str, param: str
) -> None:
    error = create(client, 400, **{**body, **values})
    assert (error["code"], error["param"]) == (code, param)


def test_a_row_without_an_answer_is_named_and_nothing_is_created(
    client: Client, organization: Organization, body: dict[str, Any]
) -> None:
    rows = chats()
    del rows[7]["messages"][1]
    num_files = File.objects.count() + 1
    error = create(client, 400, **{**body, "prompts_file": make_file(organization, rows, purpose="fine-tune").pk})
    assert (error["code"], error["param"]) == ("missing_answer", "prompts_file")
    assert "line 8" in error["message"]
    assert (Pipeline.objects.count(), File.objects.count(), Job.objects.count()) == (0, num_files, 0)


def test_files_of_other_purposes_or_organizations_are_refused(
    client: Client, organization: Organization, body: dict[str, Any]
) -> None:
    other = make_file(organization, chats(), purpose="user_data")
    assert create(client, 400, **{**body, "prompts_file": other.pk})["param"] == "prompts_file"
    stranger = make_organization("other")
    strangers_model = make_base_model(organization=stranger)
    error = create(client_of(stranger), 404, **{**body, "model": strangers_model.name})
    assert error["code"] == "file_not_found"


def test_a_plan_has_no_engine_for_answers_that_exist(client: Client, body: dict[str, Any]) -> None:
    response = client.post("/v1/pipelines", {"name": "p", **body, "validate_only": True}, "application/json")
    assert response.status_code == 200, response.content
    assert response.json()["distillation"] is None
    assert not Pipeline.objects.exists()


def test_the_lineage_of_redacted_answers_leads_to_the_file_of_the_customer(
    client: Client, organization: Organization, body: dict[str, Any]
) -> None:
    rows = chats()
    rows[3]["messages"][1]["content"] = "write to ann@example.com"
    logs = make_file(organization, rows, purpose="fine-tune")
    made = create(client, **{**body, "prompts_file": logs.pk}, on_sensitive="redact")

    graph = client.get(f"/v1/lineage/{made['id']}").json()

    assert {logs.pk, made["prompts_file"], made["held_out_file"]} <= {node["id"] for node in graph["nodes"]}


def test_logs_may_name_the_models_of_other_services(
    client: Client, organization: Organization, body: dict[str, Any]
) -> None:
    """A row that is held out is answered by the model of the pipeline."""
    rows = [
        {
            "body": {"model": "other-1", "messages": chat["messages"][:1]},
            "response": {"choices": [{"finish_reason": "stop", "message": chat["messages"][1]}]},
        }
        for chat in chats()
    ]
    logs = make_file(organization, rows, purpose="fine-tune")

    made = create(client, **{**body, "prompts_file": logs.pk}, held_out=4)

    with get_storage().open(f"{organization.pk}/pipelines/{made['id']}/held_out.jsonl") as source:
        held_out = [json.loads(line) for line in source.read().splitlines()]
    assert [row["body"]["model"] for row in held_out] == [body["model"]] * 4


def test_a_fine_tuning_job_trains_on_the_answers_of_its_file(client: Client, body: dict[str, Any]) -> None:
    request = {"model": body["model"], "training_file": body["prompts_file"], "turbo": {"answers": "file"}}
    made = client.post("/v1/fine_tuning/jobs", request, "application/json").json()
    assert (made["turbo"]["state"], made["status"]) == ("training", "running")
    pipeline = Pipeline.objects.get(pk=made["turbo"]["pipeline_id"])
    assert (pipeline.answers, pipeline.batch) == ("file", None)
    job = Job.objects.get()
    assert "answers_key" in job.params
    assert job.min_protocol == LABELS_AND_HARDWARE, "an older worker would fail the job"
    assert advance_to_stage("distil", pipeline).status == "training"
