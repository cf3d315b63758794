"""The training of an adapter is refused if it fits on no device, and the message says what would fit."""

from dataclasses import asdict
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from control.core.settings.config import get_config
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.tenants.accounts.models import Organization
from control.workflows.fine_tuning.models import FineTuningJob
from tests.control.factories import make_base_model, make_file
from tests.control.workflows.fine_tuning.test_api import JOBS, fine_tune_rows
from workers.model_sizes import ModelSizes
from workers.planning import fine_tuning_parts

pytestmark = pytest.mark.django_db

SIZES = ModelSizes(
    vocab_size=1000, hidden_size=64, intermediate_size=256, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16,
    max_positions=128, has_tied_head=True, dtype_bytes=2,
)  # fmt: skip
NEEDED = fine_tuning_parts(SIZES, rank=16, device="cpu")


@pytest.fixture
def training_file(organization: Organization) -> File:
    make_base_model("tiny", organization)
    BaseModel.objects.update(sizes=asdict(SIZES))
    return make_file(organization, fine_tune_rows(), purpose="fine-tune")


def state_memory(settings: Settings, num_bytes: int) -> None:
    update = {"device": "cpu", "device_memory_bytes": {"cpu": num_bytes}}
    settings.SLIPSTREAM = get_config().model_copy(update=update)


def post(client: Client, training_file: File, **values: Any) -> Any:
    method = {"type": "supervised", "supervised": {"hyperparameters": {"lora_rank": 16}}}
    body = {"model": "tiny", "training_file": training_file.pk, "method": method, **values}
    return client.post(JOBS, body, content_type="application/json")


def test_the_adapter_has_the_parameters_that_peft_gives_it_and_the_model_is_planned_in_float32() -> None:
    products = 2 * (64 * 64 + 64 * 32 * 2 + 64 * 64 + 3 * 64 * 256)
    assert NEEDED.weights == 4 * (products + 1000 * 64)
    layer = 16 * ((64 + 64) * 2 + (64 + 32) * 2 + (64 + 256) * 3)
    assert NEEDED.adapter == 2 * layer * 4 * 4


def test_a_training_that_cannot_fit_is_refused_with_the_rank_that_would(
    client: Client, training_file: File, settings: Settings
) -> None:
    state_memory(settings, NEEDED.total - 1)
    refused = post(client, training_file)

    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "does_not_fit")
    assert error["param"] == "method.supervised.hyperparameters.lora_rank"
    assert "A lora_rank of at most 15 may fit." in error["message"]
    assert not FineTuningJob.objects.exists()
    state_memory(settings, NEEDED.weights)
    error = post(client, training_file).json()["error"]
    assert (error["param"], "Choose a smaller model" in error["message"]) == ("model", True)

    state_memory(settings, NEEDED.total)
    assert post(client, training_file).status_code == 200
    needed = Job.objects.get().memory_needed
    assert needed is not None
    assert needed["cpu"] == NEEDED.total


def test_validate_only_answers_with_the_plan_and_creates_nothing(
    client: Client, training_file: File, settings: Settings
) -> None:
    state_memory(settings, NEEDED.total + NEEDED.adapter // 16)

    planned = post(client, training_file, validate_only=True)

    assert planned.status_code == 200
    assert planned.json()["object"] == "fine_tuning.plan"
    (device,) = planned.json()["devices"]
    assert (device["device_kind"], device["fits"], device["max_lora_rank"]) == ("cpu", True, 17)
    assert device["parts"] == asdict(NEEDED)
    assert not Job.objects.exists()
    speculator = post(client, training_file, validate_only=True, turbo={"kind": "medusa"}, method=None)
    assert (speculator.status_code, speculator.json()["error"]["param"]) == (400, "validate_only")


def test_a_plan_never_names_a_rank_that_requests_cannot_have(
    client: Client, training_file: File, settings: Settings
) -> None:
    state_memory(settings, NEEDED.total + 1000 * NEEDED.adapter)
    (device,) = post(client, training_file, validate_only=True).json()["devices"]
    hyperparameters = {"lora_rank": device["max_lora_rank"]}
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    assert post(client, training_file, validate_only=True, method=method).status_code == 200


def test_a_model_or_device_of_unknown_size_is_accepted(client: Client, training_file: File, settings: Settings) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update={"device": "cpu", "device_memory_bytes": {}})
    (device,) = post(client, training_file, validate_only=True).json()["devices"]
    assert (device["fits"], device["max_lora_rank"]) == (None, None)
    BaseModel.objects.update(sizes=None)
    state_memory(settings, 1)
    assert post(client, training_file).status_code == 200
