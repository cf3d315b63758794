"""Once an installation has a price, no work is started for a base model without a price."""

from typing import Any

import pytest
from django.test import Client

from control.billing.usage.services import price_set
from control.core.api.errors import ApiError
from control.serving.deployments.services import deployment_start, deployment_stop
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create, batch_validate
from tests.control.factories import chat_row, make_base_model, make_file
from tests.control.serving.deployments.support import make_deployment
from tests.control.world import World

STARTING = {
    "/v1/deployments": lambda world: {"name": "endpoint", "model": world.base_model.name},
    "/v1/batches": lambda world: {
        "input_file_id": world.file.pk,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "model": world.base_model.name,
    },
    "/v1/distillations": lambda world: {"model": world.base_model.name, "prompts_file": world.file.pk},
    "/v1/pipelines": lambda world: {"name": "p", "model": world.base_model.name, "prompts_file": world.file.pk},
    "/v1/fine_tuning/jobs": lambda world: {"model": world.base_model.name, "training_file": world.file.pk},
    "/v1/evaluations": lambda world: {"speculator_id": world.speculator.pk, "prompts_file": world.file.pk},
}


@pytest.mark.parametrize("path", STARTING)
def test_once_there_is_a_price_a_model_without_a_price_is_refused(
    path: str, client: Client, organization: Organization
) -> None:
    world = World(organization)
    body = STARTING[path](world)
    price_set(base_model_id=make_base_model("priced").pk, model="priced", input_nanousd=1, output_nanousd=1)

    refused = post(client, path, body)

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_priced")
    price_set(base_model_id="", input_nanousd=1, output_nanousd=1)
    accepted = post(client, path, body)
    assert accepted.status_code != 403, accepted.content


def post(client: Client, path: str, body: dict[str, Any]) -> Any:
    return client.post(path, body, content_type="application/json")


def test_a_batch_whose_rows_name_a_model_without_a_price_fails_before_it_runs(organization: Organization) -> None:
    make_base_model("free")
    price_set(base_model_id=make_base_model("priced").pk, input_nanousd=1, output_nanousd=1)
    file = make_file(organization, [chat_row(model="free")])
    batch = batch_create(organization=organization, input_file=file, endpoint="/v1/chat/completions")

    assert not batch_validate(batch=batch)

    assert Batch.objects.filter(pk=batch.pk, status="failed", errors__0__code="model_not_priced").exists()


def test_a_stopped_deployment_of_a_model_without_a_price_is_not_started(organization: Organization) -> None:
    deployment = make_deployment(make_base_model("free"), organization)
    deployment_stop(deployment=deployment)
    price_set(base_model_id=make_base_model("priced").pk, input_nanousd=1, output_nanousd=1)

    with pytest.raises(ApiError) as refusal:
        deployment_start(deployment=deployment)

    assert refusal.value.code == "model_not_priced"
