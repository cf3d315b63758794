"""Fine-tuning jobs that learn the labels of a file: requests with `method` and without `turbo`."""

from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from control.billing.usage.services import price_set
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.models.adapters.models import Adapter
from control.models.adapters.services import adapter_store
from control.models.catalog.models import BaseModel
from control.queue.jobs.checkpoints import checkpoint_folder
from control.queue.jobs.failures import Failure
from control.queue.jobs.models import Job
from control.queue.jobs.protocol import LABELS_AND_HARDWARE
from control.queue.jobs.services import job_claim, job_commit_checkpoint, job_fail, job_metrics, job_succeed
from control.queue.jobs.state import Claim
from control.tenants.accounts.models import Organization
from control.tenants.events.models import Event
from control.workflows.fine_tuning import adapters
from control.workflows.fine_tuning.adapters import adapter_trained
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import chat_row, client_of, make_base_model, make_file, make_organization
from tests.control.models.adapters.support import write_adapter
from tests.control.workflows.fine_tuning.test_api import JOBS, fine_tune_rows
from workers.contracts import FailureClass

pytestmark = pytest.mark.django_db


@pytest.fixture
def training_file(organization: Organization) -> File:
    make_base_model("tiny", organization)
    return make_file(organization, fine_tune_rows(), purpose="fine-tune")


def create(client: Client, file: File, *, status: int = 200, **values: Any) -> Any:
    hyperparameters = values.pop("hyperparameters", {})
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    body = {"model": "tiny", "training_file": file.pk, "method": method, **values}
    response = client.post(JOBS, body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def claimed(body: dict[str, Any]) -> tuple[FineTuningJob, Claim]:
    job = FineTuningJob.objects.get(pk=body["id"])
    assert job.job_id is not None
    claim = job_claim(job_id=job.job_id, worker="test")
    assert claim is not None
    return job, claim


def commit(claim: Claim, folder: Path, *, step: int, rank: int) -> None:
    prefix = checkpoint_folder(claim.job_id, step=step, fence=claim.fence)
    get_storage().put_folder(prefix, write_adapter(folder, rank=rank))
    job_metrics(claim=claim, metrics={"loss": 1 / step, "validation_loss": 2 / step, "validation_accuracy": 0.5})
    job_commit_checkpoint(claim=claim, storage_prefix=prefix, step=step)


def finish(job: FineTuningJob, claim: Claim, folder: Path) -> Adapter:
    """Does what a worker does when the training has ended."""
    adapter = adapter_trained(job=job, folder=write_adapter(folder))
    job_succeed(claim=claim, result={"trained_tokens": 360, "rows_cut": 1, "adapter_id": adapter.pk})
    return adapter


def test_a_job_without_turbo_queues_the_training_of_an_adapter(client: Client, training_file: File) -> None:
    hyperparameters = {"n_epochs": 2, "batch_size": 4, "learning_rate_multiplier": 2.0, "lora_rank": 8}
    more = {"long_rows": "cut", "max_row_tokens": 512, "packing": False, "lora_alpha": 16}

    body = create(client, training_file, hyperparameters=hyperparameters | more, suffix="mine", seed=7)

    assert (body["status"], body["model"], body["seed"], body["fine_tuned_model"]) == ("queued", "tiny", 7, None)
    assert body["method"] == {"type": "supervised", "supervised": {"hyperparameters": hyperparameters | more}}
    assert (body["turbo"]["kind"], body["turbo"]["pipeline_id"], body["turbo"]["waiting_for"]) == (
        "lora",
        None,
        "worker",
    )
    job = FineTuningJob.objects.get(pk=body["id"])
    assert job.job is not None
    assert job.job.params == {
        "method": "lora",
        "fine_tuning_job_id": job.pk,
        "seed": 7,
        "hyperparameters": {
            "epochs": 2, "batch_rows": 4, "learning_rate": pytest.approx(4e-4), "rank": 8, "alpha": 16,
            "long_rows": "cut", "max_row_tokens": 512, "packing": False,
        },
    }  # fmt: skip
    assert job.job.min_protocol == LABELS_AND_HARDWARE, "an older worker would fail the job"
    assert job.name == f"ft:tiny:mine:{job.pk[-8:]}"
    assert not Pipeline.objects.exists()
    assert client.get(f"{JOBS}/{job.pk}").json() == body
    assert client.get(JOBS).json()["data"] == [body]


def test_a_job_with_turbo_still_trains_a_speculator(client: Client, training_file: File) -> None:
    body = create(client, training_file, turbo={})

    assert body["turbo"]["kind"] == "medusa"
    assert FineTuningJob.objects.get(pk=body["id"]).pipeline is not None


def test_the_result_is_an_adapter_that_the_job_names_and_that_can_be_downloaded(
    client: Client, training_file: File, tmp_path: Path
) -> None:
    body = create(client, training_file, suffix="mine")
    job, claim = claimed(body)

    adapter = finish(job, claim, tmp_path / "result")

    done = client.get(f"{JOBS}/{job.pk}").json()
    assert (done["status"], done["fine_tuned_model"], done["trained_tokens"]) == ("succeeded", job.name, 360)
    assert (done["turbo"]["adapter_id"], done["turbo"]["report"]["rows_cut"]) == (adapter.pk, 1)
    (listed,) = client.get("/v1/adapters").json()["data"]
    assert (listed["id"], listed["name"], listed["model"]) == (adapter.pk, job.name, "tiny")
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        response = client.get(f"/v1/adapters/{adapter.pk}/content", {"name": name})
        with get_storage().open(f"{adapter.storage_prefix}/{name}") as stored:
            assert b"".join(response.streaming_content) == stored.read()  # type: ignore[attr-defined]
    assert client.get(f"/v1/adapters/{adapter.pk}/content", {"name": "../x"}).status_code == 400
    stranger = client_of(make_organization())
    assert stranger.get(f"/v1/adapters/{adapter.pk}/content").status_code == 404


def test_a_repeated_attempt_stores_the_result_only_once(client: Client, training_file: File, tmp_path: Path) -> None:
    """The first worker is killed after it has stored the adapter, and before it has ended the job."""
    job, _ = claimed(create(client, training_file))

    first = adapter_trained(job=job, folder=write_adapter(tmp_path / "first"))
    second = adapter_trained(job=job, folder=write_adapter(tmp_path / "second"))

    assert first == second == Adapter.objects.get()
    job.refresh_from_db()
    assert job.adapter == first


def test_if_two_attempts_store_an_adapter_at_once_both_return_the_adapter_that_was_stored_first(
    client: Client, training_file: File, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt that has lost its lease saves the adapter while the next attempt stores its own."""
    job, _ = claimed(create(client, training_file))
    first: list[Adapter] = []

    def overtaken(**values: Any) -> Adapter:
        if not first:
            first.append(adapter_store(**{**values, "folder": write_adapter(tmp_path / "first")}))
        return adapter_store(**values)

    monkeypatch.setattr(adapters, "adapter_store", overtaken)
    second = adapter_trained(job=job, folder=write_adapter(tmp_path / "second"))

    assert first == [second] == list(Adapter.objects.all())
    job.refresh_from_db()
    assert job.adapter == second


def test_a_job_remains_when_its_adapter_is_deleted(client: Client, training_file: File, tmp_path: Path) -> None:
    job, claim = claimed(create(client, training_file))
    adapter = finish(job, claim, tmp_path / "result")

    assert client.delete(f"/v1/adapters/{adapter.pk}").status_code == 200

    body = client.get(f"{JOBS}/{job.pk}").json()
    assert (body["status"], body["fine_tuned_model"], body["turbo"]["adapter_id"]) == ("succeeded", job.name, None)


def test_events_tell_what_happened_and_have_both_losses(client: Client, training_file: File, tmp_path: Path) -> None:
    job, claim = claimed(create(client, training_file))
    commit(claim, tmp_path / "a", step=10, rank=2)
    finish(job, claim, tmp_path / "result")

    events = client.get(f"{JOBS}/{job.pk}/events").json()["data"]

    messages = [event["message"] for event in events]
    training = "The adapter is trained on the labels of the training file"
    assert messages == ["The job has succeeded", "Step 10", training, "The job is queued"]
    assert [event["level"] for event in events] == ["info"] * 4
    assert events[1]["data"] == {
        "step": 10, "train_loss": 0.1, "valid_loss": 0.2, "valid_mean_token_accuracy": 0.5,
    }  # fmt: skip
    published = Event.objects.filter(object_id=job.pk).values_list("type", flat=True)
    assert list(published) == ["fine_tuning.job.succeeded"]


def test_the_error_of_the_training_is_the_error_of_the_job(client: Client, training_file: File) -> None:
    job, claim = claimed(create(client, training_file))
    message = "training_file: line 3: the row has 900 tokens, and at most 512 are allowed"
    job_fail(
        claim=claim, failure=Failure(failure_class=FailureClass.INVALID_INPUT, code="row_too_long", message=message)
    )

    body = client.get(f"{JOBS}/{job.pk}").json()

    assert (body["status"], body["fine_tuned_model"]) == ("failed", None)
    assert body["error"] == {"code": "row_too_long", "message": message, "param": None}
    assert message in client.get(f"{JOBS}/{job.pk}/events").json()["data"][0]["message"]


def test_any_checkpoint_can_become_an_adapter(client: Client, training_file: File, tmp_path: Path) -> None:
    job, claim = claimed(create(client, training_file))
    commit(claim, tmp_path / "a", step=10, rank=3)
    commit(claim, tmp_path / "b", step=20, rank=4)

    url = f"{JOBS}/{job.pk}/checkpoints"
    last, first = client.get(url).json()["data"]
    assert (first["step_number"], first["fine_tuned_model_checkpoint"]) == (10, f"{job.name}:ckpt-step-10")
    made = client.post(f"{url}/{first['id']}/adapter", {}, content_type="application/json")
    assert made.status_code == 201
    assert (made.json()["name"], made.json()["rank"]) == (f"{job.name}:ckpt-step-10", 3)
    named = client.post(f"{url}/{last['id']}/adapter", {"name": "tone"}, content_type="application/json").json()
    assert (named["name"], named["rank"], named["model"]) == ("tone", 4, "tiny")
    again = client.post(f"{url}/{first['id']}/adapter", {}, content_type="application/json")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "name_taken")


def test_a_checkpoint_of_another_job_and_a_deleted_checkpoint_are_not_found(
    client: Client, training_file: File, tmp_path: Path
) -> None:
    job, claim = claimed(create(client, training_file))
    commit(claim, tmp_path / "a", step=10, rank=2)
    (checkpoint,) = client.get(f"{JOBS}/{job.pk}/checkpoints").json()["data"]
    other = create(client, training_file)

    def status_of(job_id: str, checkpoint_id: str, client: Client = client) -> int:
        url = f"{JOBS}/{job_id}/checkpoints/{checkpoint_id}/adapter"
        return client.post(url, {}, content_type="application/json").status_code

    assert status_of(other["id"], checkpoint["id"]) == 404
    assert status_of(job.pk, "ftckpt_9x") == status_of(job.pk, checkpoint["id"].removeprefix("ftckpt_")) == 404
    assert status_of(job.pk, checkpoint["id"], client_of(make_organization())) == 404
    get_storage().delete_folder(checkpoint_folder(claim.job_id, step=10, fence=claim.fence))
    assert status_of(job.pk, checkpoint["id"]) == 404
    assert not Adapter.objects.exists()


def test_a_job_is_paused_resumed_and_cancelled(client: Client, training_file: File) -> None:
    url = f"{JOBS}/{create(client, training_file)['id']}"

    paused = client.post(f"{url}/pause").json()
    assert (paused["status"], paused["turbo"]["waiting_for"]) == ("paused", "resume")
    assert client.post(f"{url}/resume").json()["status"] == "queued"
    client.post(f"{url}/cancel")
    job = Job.objects.get()
    assert job.cancel_requested_at is not None
    assert client.post(f"{url}/cancel").status_code == 200  # repeating it changes nothing


@pytest.mark.parametrize("action", ["cancel", "pause", "resume"])
def test_a_job_that_has_ended_stays_as_it_is(client: Client, training_file: File, tmp_path: Path, action: str) -> None:
    job, claim = claimed(create(client, training_file))
    finish(job, claim, tmp_path / "result")

    response = client.post(f"{JOBS}/{job.pk}/{action}")

    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_fine_tuning_job_status")


@pytest.mark.parametrize(
    ("values", "status", "param"),
    [
        ({"model": "none"}, 404, "model"),
        ({"training_file": "file-none"}, 404, "training_file"),
        ({"validation_file": "file-none"}, 404, "validation_file"),
        ({"hyperparameters": {"n_epochs": 0}}, 400, "n_epochs"),
        ({"hyperparameters": {"batch_size": 0}}, 400, "batch_size"),
        ({"hyperparameters": {"lora_rank": 257}}, 400, "lora_rank"),
        ({"hyperparameters": {"long_rows": "drop"}}, 400, "long_rows"),
        ({"hyperparameters": {"rank": 8}}, 400, "rank"),
        ({"hyperparameters": {"learning_rate_multiplier": 1e-9}}, 400, "learning_rate_multiplier"),
    ],
)
def test_the_error_for_an_invalid_request_names_the_field_and_leaves_no_job(
    client: Client, training_file: File, values: dict[str, Any], status: int, param: str
) -> None:
    error = create(client, training_file, status=status, **values)["error"]

    prefix = "method.supervised.hyperparameters." if "hyperparameters" in values else ""
    assert error["param"] == f"{prefix}{param}"
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"method": {"type": "supervised", "hardware": "cuda"}}, "method.hardware"),
        ({"method": {"supervised": {"hardware": "cuda"}}}, "method.supervised.hardware"),
        ({"method": {"type": "supervised"}, "hardware": "cuda"}, "hardware"),
        ({"method": {"type": "supervised"}, "hyperparameters": {"n_epochs": 1}}, "hyperparameters"),
    ],
)
def test_an_option_that_would_have_no_effect_is_refused(
    client: Client, training_file: File, values: dict[str, Any], param: str
) -> None:
    body = {"model": "tiny", "training_file": training_file.pk, **values}

    response = client.post(JOBS, body, content_type="application/json")

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"messages": [{"role": "user", "content": "a"}]}, "missing_label"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}]}, "missing_label"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "missing_prompt"),
        ({"prompt": "a", "completion": "b"}, "mixed_formats"),
    ],
)
def test_a_row_without_a_label_is_refused_with_its_line(
    client: Client, organization: Organization, training_file: File, row: dict[str, Any], code: str
) -> None:
    rows = fine_tune_rows(4)
    bad = make_file(organization, [*rows[:2], row, *rows[2:]], purpose="fine-tune")

    for values, param in (
        ({"training_file": bad.pk}, "training_file"),
        ({"validation_file": bad.pk}, "validation_file"),
    ):
        error = create(client, training_file, status=400, **values)["error"]
        assert (error["code"], error["param"]) == (code, param)
        assert "line 3" in error["message"]
    assert not Job.objects.exists()


def test_rows_of_tool_calls_are_labels(client: Client, organization: Organization, training_file: File) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call]}]}

    create(client, make_file(organization, [row], purpose="fine-tune"))


def test_rows_of_a_batch_have_no_labels(client: Client, organization: Organization, training_file: File) -> None:
    error = create(client, make_file(organization, [chat_row("row-1")]), status=400)["error"]

    assert (error["code"], error["param"]) == ("invalid_value", "training_file")
    assert "purpose 'fine-tune', got purpose 'batch'" in error["message"]


def test_a_model_of_another_type_is_refused(client: Client, training_file: File) -> None:
    BaseModel.objects.update(model_type="deepseek_v3")

    error = create(client, training_file, status=400)["error"]

    assert (error["code"], error["param"]) == ("fine_tuning_not_supported", "model")


def test_a_model_without_a_price_is_refused_if_prices_are_in_use(client: Client, training_file: File) -> None:
    price_set(base_model_id=make_base_model("priced").pk, input_nanousd=1, output_nanousd=1)

    assert create(client, training_file, status=403)["error"]["code"] == "model_not_priced"


def test_a_list_takes_the_same_number_of_queries_for_any_number_of_jobs(client: Client, training_file: File) -> None:
    counts = []
    for _ in range(2):
        create(client, training_file)
        create(client, training_file)
        with CaptureQueriesContext(connection) as queries:
            client.get(JOBS)
        counts.append(len(queries))

    assert counts[0] == counts[1]
