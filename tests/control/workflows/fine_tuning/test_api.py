"""OpenAI's fine-tuning routes. Each fine-tuning job runs as a pipeline, which the tests advance as workers do.

`turbo` is the member of the request with our own parameters.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.services import job_claim, job_commit_checkpoint, job_metrics
from control.tenants.accounts.models import Organization
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import chat_row, client_of, make_base_model, make_file
from tests.control.workflows.pipelines.helpers import (
    advance_to_stage,
    end_batch,
    end_evaluation,
    end_training,
    set_deployment_state,
)

pytestmark = pytest.mark.django_db

JOBS = "/v1/fine_tuning/jobs"


def fine_tune_rows(count: int = 20) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"{n}+1?"}, {"role": "assistant", "content": str(n + 1)}]}
        for n in range(count)
    ]


@pytest.fixture
def training_file(organization: Organization) -> File:
    make_base_model("tiny", organization)
    return make_file(organization, fine_tune_rows(), purpose="fine-tune")


def create(client: Client, file: File, **values: Any) -> Any:
    return client.post(JOBS, {"model": "tiny", "training_file": file.pk, **values}, content_type="application/json")


def pipeline_of(body: dict[str, Any]) -> Pipeline:
    pipeline = FineTuningJob.objects.get(pk=body["id"]).pipeline
    assert pipeline is not None
    return pipeline


def test_a_job_creates_a_pipeline_with_the_prompts_of_the_file(client: Client, training_file: File) -> None:
    response = create(client, training_file, suffix="mine", seed=7, metadata={"a": "b"})

    body = response.json()
    assert response.status_code == 200
    assert (body["object"], body["status"], body["model"]) == ("fine_tuning.job", "queued", "tiny")
    assert (body["training_file"], body["seed"], body["metadata"]) == (training_file.pk, 7, {"a": "b"})
    assert (body["fine_tuned_model"], body["finished_at"], body["error"]) == (None, None, None)
    assert body["method"]["type"] == "supervised"
    pipeline = pipeline_of(body)
    assert body["turbo"]["pipeline_id"] == pipeline.pk
    assert pipeline.name.startswith("ft-tiny-mine-")
    assert not pipeline.deploy
    with get_storage().open(pipeline.held_out_file.storage_key) as held_out:
        rows = [json.loads(line) for line in held_out.read().splitlines() if line]
    assert len(rows) == 2  # a tenth of the rows is held out by default
    assert [message["role"] for message in rows[0]["body"]["messages"]] == ["user"]
    assert client.get(f"{JOBS}/{body['id']}").json() == body
    assert client.get(JOBS).json()["data"] == [body]


def test_a_batch_file_is_used_unchanged_and_a_validation_file_is_held_out(
    client: Client, organization: Organization, training_file: File
) -> None:
    prompts = make_file(organization, [chat_row(f"row-{n}") for n in range(20)])

    body = create(client, prompts, validation_file=training_file.pk).json()

    assert body["validation_file"] == training_file.pk
    assert pipeline_of(body).prompts_file == prompts


@pytest.mark.parametrize(
    ("hyperparameters", "turbo", "expected"),
    [
        ({"n_epochs": 3}, {}, {"kind": "medusa", "epochs": 3}),
        ({"n_epochs": "auto", "batch_size": "auto"}, {"kind": "eagle3"}, {"kind": "eagle3"}),
        ({"learning_rate_multiplier": 2.0}, {}, {"kind": "medusa", "learning_rate": 2e-3}),  # twice the default
        ({"n_epochs": 3}, {"hyperparameters": {"epochs": 4, "num_heads": 2}}, {"epochs": 4, "num_heads": 2}),
    ],
)
def test_hyperparameters_of_openai_and_of_turbo_are_passed_to_the_training(
    client: Client,
    training_file: File,
    hyperparameters: dict[str, Any],
    turbo: dict[str, Any],
    expected: dict[str, Any],
) -> None:
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}

    body = create(client, training_file, method=method, turbo=turbo).json()

    assert pipeline_of(body).training.items() >= expected.items()


def test_a_succeeded_job_names_its_fine_tuned_model(client: Client, training_file: File) -> None:
    body = create(client, training_file).json()
    # The default gate of a fine-tuning job has no minimum speedup.
    pipeline = end_evaluation(advance_to_stage("evaluate", pipeline_of(body)), speedup=0.9)

    job = client.get(f"{JOBS}/{body['id']}").json()

    assert (job["status"], job["fine_tuned_model"]) == ("succeeded", pipeline.name)
    assert job["finished_at"] is not None
    assert job["turbo"]["speculator_id"] == pipeline.speculator_id


def test_the_fine_tuned_model_of_a_deployed_job_is_the_name_of_its_deployment(
    client: Client, training_file: File
) -> None:
    body = create(client, training_file, turbo={"deploy": True}).json()
    pipeline = set_deployment_state(advance_to_stage("deploy", pipeline_of(body)), "ready")

    job = client.get(f"{JOBS}/{body['id']}").json()

    assert (job["status"], job["turbo"]["state"]) == ("succeeded", "live")
    assert pipeline.deployment is not None
    assert pipeline.deployment.name == job["fine_tuned_model"]


def test_the_error_of_the_pipeline_is_the_error_of_the_job(client: Client, training_file: File) -> None:
    failed = create(client, training_file).json()
    end_batch(pipeline_of(failed), "failed", errors=[{"code": "out_of_memory", "message": "Too large."}])
    unequal = create(client, training_file).json()
    end_evaluation(advance_to_stage("evaluate", pipeline_of(unequal)), outputs_equal=1)  # of 2 answers

    for body, code in ((failed, "out_of_memory"), (unequal, "gate_rejected")):
        job = client.get(f"{JOBS}/{body['id']}").json()
        assert (job["status"], job["error"]["code"], job["error"]["param"]) == (
            "failed",
            code,
            None,
        )
        assert job["fine_tuned_model"] is None


def test_a_job_can_be_cancelled_until_it_has_ended(client: Client, training_file: File) -> None:
    body = create(client, training_file).json()

    assert client.post(f"{JOBS}/{body['id']}/cancel").json()["status"] == "cancelled"
    assert client.get(f"{JOBS}/{body['id']}").json()["finished_at"] is not None
    ended = create(client, training_file).json()
    end_evaluation(advance_to_stage("evaluate", pipeline_of(ended)))
    assert client.post(f"{JOBS}/{ended['id']}/cancel").status_code == 400


def train_two_checkpoints(pipeline: Pipeline) -> Pipeline:
    pipeline = advance_to_stage("train", pipeline)
    assert pipeline.training_job is not None
    claim = job_claim(job_id=pipeline.training_job.pk, worker="test")
    assert claim is not None
    for step in (10, 20):
        job_metrics(claim=claim, metrics={"loss": 1 / step, "acceptance_length": 2.0})
        job_commit_checkpoint(claim=claim, storage_prefix=f"checkpoint-{step}", step=step)
    return pipeline


def test_events_are_paged_from_the_newest_to_the_oldest(client: Client, training_file: File) -> None:
    body = create(client, training_file).json()
    end_training(train_two_checkpoints(pipeline_of(body)))
    url = f"{JOBS}/{body['id']}/events"

    all_events = client.get(url).json()
    pages: list[dict[str, Any]] = []
    after: dict[str, Any] = {}
    while True:
        page = client.get(url, {"limit": 2, **after}).json()
        pages += page["data"]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}

    assert pages == all_events["data"]
    assert [event["data"].get("state", event["data"].get("step")) for event in pages] == [
        "evaluating",
        20,
        10,
        "training",
        "distilling",
    ]
    metrics = pages[1]
    assert (metrics["object"], metrics["type"], metrics["level"]) == ("fine_tuning.job.event", "metrics", "info")
    assert metrics["data"] == {"step": 20, "train_loss": 0.05, "acceptance_length": 2.0}
    assert client.get(url, {"after": "ftevent-none"}).status_code == 400


def test_checkpoints_show_the_metrics_of_their_step(client: Client, training_file: File) -> None:
    body = create(client, training_file).json()
    pipeline = train_two_checkpoints(pipeline_of(body))

    checkpoints = client.get(f"{JOBS}/{body['id']}/checkpoints").json()["data"]

    assert [checkpoint["step_number"] for checkpoint in checkpoints] == [20, 10]
    last = checkpoints[0]
    assert last["metrics"] == {"step": 20, "train_loss": 0.05, "acceptance_length": 2.0}
    assert last["fine_tuned_model_checkpoint"] == f"{pipeline.name}:ckpt-step-20"
    assert last["fine_tuning_job_id"] == body["id"]


def test_checkpoints_of_the_evaluation_are_not_listed(client: Client, training_file: File) -> None:
    body = create(client, training_file).json()
    job = advance_to_stage("evaluate", pipeline_of(body)).evaluation_job
    assert job is not None
    claim = job_claim(job_id=job.pk, worker="test")
    assert claim is not None
    job_commit_checkpoint(claim=claim, storage_prefix="measured", step=1)

    assert client.get(f"{JOBS}/{body['id']}/checkpoints").json()["data"] == []
    assert "metrics" not in [event["type"] for event in client.get(f"{JOBS}/{body['id']}/events").json()["data"]]


def test_a_job_stored_by_an_older_version_is_shown(client: Client, training_file: File) -> None:
    body = create(client, training_file).json()
    pipeline = train_two_checkpoints(pipeline_of(body))
    FineTuningJob.objects.update(hyperparameters=["auto"], metadata={"a": 1})
    Pipeline.objects.update(status=Pipeline.Status.FAILED, training={"heads": 2, "seed": "7"}, error={"reason": "x"})
    Job.objects.update(paused={"message": "It waits."})
    JobEvent.objects.filter(job=pipeline.training_job).update(data={})

    job = client.get(f"{JOBS}/{body['id']}").json()

    assert (job["hyperparameters"], job["metadata"], job["seed"]) == (
        ["auto"],
        {"a": 1},
        "7",
    )
    assert (job["turbo"]["kind"], job["turbo"]["hyperparameters"]) == (None, {"heads": 2})
    assert job["error"] == {"code": "failed", "message": "The job failed.", "param": None}
    assert client.get(f"{JOBS}/{body['id']}/events").status_code == 200
    assert client.get(f"{JOBS}/{body['id']}/checkpoints").json()["data"][0]["step_number"] is None
    Pipeline.objects.update(status=Pipeline.Status.TRAINING)
    turbo = client.get(f"{JOBS}/{body['id']}").json()["turbo"]
    assert (turbo["paused"], turbo["waiting_for"]) == ({"message": "It waits."}, "spend_cap")


def test_jobs_can_be_filtered_by_metadata(client: Client, training_file: File) -> None:
    first, second = (create(client, training_file, metadata={"a": "1", "b c": b}).json()["id"] for b in ("2", "3"))

    def ids_with(**wanted: str) -> list[str]:
        query = {f"metadata[{key}]": value for key, value in wanted.items()}
        return [job["id"] for job in client.get(JOBS, query).json()["data"]]

    assert ids_with(a="1") == [second, first]
    assert ids_with(**{"a": "1", "b c": "2"}) == [first]
    assert ids_with(a="2") == ids_with(none="1") == []
    assert ids_with(**{"a') OR 1=1 --": "1"}) == []


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"model": "none"}, 404, "model"),
        ({"training_file": "file-none"}, 404, "training_file"),
        ({"validation_file": "file-none"}, 404, "validation_file"),
        ({"suffix": "x" * 65}, 400, "suffix"),
        ({"suffix": "a b"}, 400, "suffix"),
        ({"seed": -1}, 400, "seed"),
        ({"metadata": {"k" * 65: "v"}}, 400, "metadata"),
        ({"integrations": [{"type": "wandb"}]}, 400, "integrations"),
        ({"method": {"type": "dpo"}}, 400, "method.type"),
        (
            {"method": {"supervised": {"hyperparameters": {"n_epochs": 0}}}},
            400,
            "method.supervised.hyperparameters.n_epochs",
        ),
        ({"hyperparameters": {"n_epochs": "many"}}, 400, "hyperparameters.n_epochs"),
        ({"turbo": {"kind": "magic"}}, 400, "turbo.kind"),
        ({"method": {"turbo": {"kind": "magic"}}}, 400, "turbo.kind"),
        ({"method": {"turbo": "magic"}}, 400, "turbo"),
        ({"turbo": {"speed": 9}}, 400, "turbo.speed"),
        ({"turbo": {"hyperparameters": {"num_heads": 0}}}, 400, "turbo.hyperparameters.num_heads"),
        ({"turbo": {"gate": {"min_speedup": "x"}}}, 400, "turbo.gate.min_speedup"),
        ({"turbo": {"held_out": 100}}, 400, "training_file"),  # the training file has 20 rows
        ({"unknown": 1}, 400, "unknown"),
    ],
)
def test_the_error_for_an_invalid_request_names_the_field_and_leaves_no_objects(
    client: Client, training_file: File, values: dict[str, Any], status: int, param: str
) -> None:
    response = create(client, training_file, **values)

    assert (response.status_code, response.json()["error"]["param"]) == (status, param)
    assert list(File.objects.all()) == [training_file]
    assert not Pipeline.objects.exists()
    assert not Job.objects.exists()


def test_an_invalid_line_is_reported_at_creation(client: Client, organization: Organization) -> None:
    make_base_model("tiny", organization)
    rows = fine_tune_rows()
    rows[2]["messages"][0]["role"] = "root"

    error = create(client, make_file(organization, rows, purpose="fine-tune")).json()["error"]

    assert (error["param"], error["code"]) == ("training_file", "invalid_body")
    assert "line 3" in error["message"]


def test_a_refused_job_leaves_no_stored_files(
    client: Client, training_file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_keys: list[str] = []
    storage = type(get_storage())
    put = storage.put_file

    def recording_put(self: Any, key: str, path: Path) -> None:
        stored_keys.append(key)
        put(self, key, path)

    monkeypatch.setattr(storage, "put_file", recording_put)

    assert create(client, training_file, turbo={"held_out": 100}).status_code == 400

    assert stored_keys
    assert [key for key in stored_keys if "/files/" in key and get_storage().exists(key)] == []


def test_jobs_of_another_organization_are_not_found(
    client: Client, training_file: File, other_organization: Organization
) -> None:
    body = create(client, training_file).json()
    other_client = client_of(other_organization)

    for path in ("", "/events", "/checkpoints"):
        assert other_client.get(f"{JOBS}/{body['id']}{path}").status_code == 404
    assert other_client.post(f"{JOBS}/{body['id']}/cancel").status_code == 404
    assert other_client.get(JOBS).json()["data"] == []
    make_base_model("theirs", other_organization)
    response = create(other_client, training_file, model="theirs")
    assert (response.status_code, response.json()["error"]["param"]) == (404, "training_file")
    assert FineTuningJob.objects.count() == 1
