"""The Python client with the real API in the test's process: caps, distillations, models, adapters and rollouts."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.utils import timezone

from control.billing.usage.services import Tokens
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.tenants.authentication.caller import Caller
from control.workflows.loops.models import LoopRound
from slipstream import Client, ConflictError, NotFoundError
from tests.control.billing.spending.support import make_quote
from tests.control.factories import add_usage, make_base_model, make_key, make_organization
from tests.control.models.adapters.support import CONFIG, SHAPES, tensor_name, weights_of, write_adapter
from tests.control.serving.deployments.support import make_speculator
from tests.control.world import World
from tests.sdk.test_contract import TRANSPORT, URL, rows

pytestmark = pytest.mark.usefixtures("one_connection")


@pytest.fixture
def organization() -> Organization:
    return make_organization()


@pytest.fixture
def client(organization: Organization) -> Iterator[Client]:
    with Client(URL, make_key(organization)[1], transport=TRANSPORT, max_retries=0) as client:
        yield client


@pytest.fixture
def base_model(organization: Organization) -> BaseModel:
    return make_base_model("tiny")


def test_spend_caps_are_created_changed_and_deleted(client: Client) -> None:
    cap = client.spend_caps.create(amount=12.5)

    assert (cap.amount["value"], cap.is_reached, cap.project_id) == (12.5, False, None)
    assert client.spend_caps.update(cap.id, amount=0).is_reached
    assert [listed.id for listed in client.spend_caps.list()] == [cap.id]
    client.spend_caps.delete(cap.id)
    with pytest.raises(NotFoundError):
        client.spend_caps.retrieve(cap.id)


def test_spending_thresholds_are_replaced_and_retrieved(client: Client) -> None:
    stated = client.spending_thresholds.set(thresholds=[{"amount": 12.5}, {"percent_of_cap": 80}])

    assert [row["percent_of_cap"] for row in stated.thresholds] == [None, 80]
    assert client.spending_thresholds.retrieve() == stated
    assert client.spending_thresholds.set(thresholds=[]).thresholds == []


def test_an_invoice_is_retrieved_and_its_lines_are_written_to_a_file(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    add_usage(Caller(organization_id=organization.pk), tokens=Tokens(input=7))
    month = f"{timezone.now():%Y-%m}"

    invoice = client.invoices.retrieve(month)
    with client.invoices.csv(month, tmp_path / "invoice.csv").open(newline="") as file:
        rows_of_csv = list(csv.DictReader(file))

    assert (invoice.id, invoice.total, invoice.is_closed) == (month, "0.00", False)
    assert [line["quantity"] for line in invoice.lines] == [row["quantity"] for row in rows_of_csv] == ["7"]


def test_the_cap_of_a_quote_can_be_removed(client: Client, organization: Organization, base_model: BaseModel) -> None:
    quote = make_quote(organization, base_model, cap_nanousd=10**9)

    retrieved = client.quotes.retrieve(quote.pk)
    assert (retrieved.cap, retrieved.spent) == ({"value": 1.0, "currency": "usd"}, {"value": 0.0, "currency": "usd"})
    assert client.quotes.update(quote.pk, cap=None).cap is None


def test_a_distillation_is_created_and_cancelled(client: Client, base_model: BaseModel) -> None:
    file = client.files.upload(rows(3))

    made = client.distillations.create(model="tiny", prompts_file=file.id, metadata={"for": "test"})

    assert (made.status, made.is_trainable, made.paused, made.is_final) == ("validating", False, None, False)
    assert [listed.id for listed in client.distillations.list()] == [made.id]
    assert client.batches.retrieve(made.batch_id).cost == {"value": 0.0, "currency": "usd"}
    assert client.distillations.cancel(made.id).status == "cancelling"


def test_models_are_registered_and_deleted(client: Client) -> None:
    made = client.base_models.create(name="mine", source="s3://models/mine")

    assert (made.status, made.source) == ("checking", "s3://models/mine")
    assert client.base_models.retrieve(made.id) == made
    client.base_models.delete(made.id)
    assert "mine" not in {model.name for model in client.base_models.list()}


def test_an_adapter_is_uploaded_from_its_folder_and_served(
    client: Client, base_model: BaseModel, tmp_path: Path
) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG))
    weights = weights_of({tensor_name(side): shape for side, shape in SHAPES.items()})
    (tmp_path / "adapter_model.safetensors").write_bytes(weights)

    adapter = client.adapters.upload(tmp_path, name="tone", model="tiny")
    assert (adapter.rank, adapter.target_modules) == (2, ["q_proj"])
    assert list(client.files.list()) == [], "the client did not delete the uploaded files"

    deployment = client.deployments.create(name="support", model="tiny", adapters=[adapter.id])
    assert [served["model"] for served in deployment.adapters] == ["support:tone"]
    with pytest.raises(ConflictError):
        client.adapters.delete(adapter.id)
    assert client.deployments.update(deployment.id, adapters=[]).adapters == []
    client.adapters.delete(adapter.id)
    assert list(client.adapters.list()) == []


def test_a_checkpoint_becomes_an_adapter_whose_files_are_downloaded(
    client: Client, organization: Organization, tmp_path: Path
) -> None:
    job = World(organization).fine_tuning_job
    (checkpoint,) = client.fine_tuning.jobs.checkpoints(job.pk)

    adapter = client.fine_tuning.jobs.create_adapter(job.pk, checkpoint.id)

    assert adapter.name == checkpoint.fine_tuned_model_checkpoint == f"{job.name}:ckpt-step-10"
    folder = client.adapters.download(adapter.id, tmp_path / "downloaded")
    assert json.loads((folder / "adapter_config.json").read_text())["peft_type"] == "LORA"
    written = write_adapter(tmp_path / "written") / "adapter_model.safetensors"
    assert (folder / "adapter_model.safetensors").read_bytes() == written.read_bytes()
    assert client.fine_tuning.jobs.create_adapter(job.pk, checkpoint.id, name="tone").name == "tone"
    Job.objects.filter(pk=job.job_id).update(status=Job.Status.SUCCEEDED)
    client.fine_tuning.jobs.delete_checkpoint(job.pk, checkpoint.id)
    assert [found.bytes for found in client.fine_tuning.jobs.checkpoints(job.pk)] == [0]


def test_a_rollout_is_started_retrieved_and_cancelled(
    client: Client, organization: Organization, base_model: BaseModel
) -> None:
    deployment = client.deployments.create(name="support", model="tiny")
    Deployment.objects.update(state=Deployment.State.READY)
    speculator = make_speculator(base_model, organization)

    rollout = client.rollouts.create(deployment.id, speculator_id=speculator.pk, share_percent=25, mode="shadow")

    assert (rollout.status, rollout.share_percent, rollout.is_final) == ("starting", 25, False)
    assert (rollout.mode, rollout.trial, rollout.watch) == ("shadow", None, None)
    assert [listed.id for listed in client.rollouts.list(deployment.id)] == [rollout.id]
    assert client.rollouts.cancel(deployment.id, rollout.id).reason == {
        "code": "cancelled", "message": "It was cancelled.",
    }  # fmt: skip
    assert client.rollouts.wait(deployment.id, rollout.id).status == "rolled_back"


def test_metrics_are_listed_by_interval(client: Client, base_model: BaseModel) -> None:
    deployment = client.deployments.create(name="support", model="tiny")
    start = int(timezone.now().timestamp()) - 2 * 3600

    intervals = list(client.deployments.metrics(deployment.id, start_time=start))

    assert len(intervals) > 60, "the list must include more than one page"
    assert intervals[0].start_time == start - start % 60
    assert {(interval.num_requests, interval.acceptance_length) for interval in intervals} == {(0, None)}


def test_a_loop_is_set_changed_and_deleted_and_its_rounds_are_listed(
    client: Client, organization: Organization, base_model: BaseModel
) -> None:
    deployment = client.deployments.create(name="support", model="tiny")
    client.captures.set(deployment.id, hours=24)

    loop = client.loops.set(deployment.id, recipe={"kind": "medusa"}, limits={"monthly_budget": 50})

    assert (loop.enabled, loop.recipe["kind"], loop.limits["monthly_budget"]["value"]) == (True, "medusa", 50.0)
    assert client.loops.retrieve(deployment.id) == loop
    made = LoopRound.objects.create(
        organization=organization, deployment_id=deployment.id, trigger="schedule", settings={"caller": loop.id}
    )
    assert [(each.id, each.is_final) for each in client.loops.rounds(deployment.id)] == [(made.pk, False)]
    assert not client.loops.update(deployment.id, enabled=False).enabled
    stopped = client.loops.retrieve_round(deployment.id, made.pk)
    assert (stopped.status, stopped.reason and stopped.reason["code"]) == ("stopped", "loop_disabled")
    client.loops.delete(deployment.id)
    with pytest.raises(NotFoundError):
        client.loops.retrieve(deployment.id)
