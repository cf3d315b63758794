"""The Python client with the real API in the test's process: options of engines and the plans of their memory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from control.models.catalog.models import BaseModel, Speculator
from control.tenants.accounts.models import Organization
from slipstream import BadRequestError, Client, EnginePlan, PipelinePlan
from tests.control.factories import make_key, make_organization
from tests.control.workflows.evaluations.helpers import make_speculator
from tests.sdk.test_contract import TRANSPORT, URL, rows
from tests.workers.test_planning import SMOLLM2
from workers.model_sizes import ModelSizes

pytestmark = pytest.mark.usefixtures("one_connection")

OPTIONS = {"weights": "int8", "max_context": 512, "max_concurrency": 32}
RESOURCES = ("deployments", "batches", "distillations", "evaluations", "pipelines")

Arguments = Callable[[str], Mapping[str, Any]]


@pytest.fixture
def organization() -> Organization:
    return make_organization()


@pytest.fixture
def client(organization: Organization) -> Iterator[Client]:
    with Client(URL, make_key(organization)[1], transport=TRANSPORT, max_retries=0) as client:
        yield client


@pytest.fixture
def arguments(client: Client, organization: Organization) -> Arguments:
    """Returns the required arguments of the resource's methods `create` and `plan`."""
    speculator: Speculator = make_speculator(organization)
    base_model: BaseModel = speculator.base_model
    base_model.sizes = asdict(ModelSizes.of(SMOLLM2))
    base_model.save()
    model, file = base_model.name, client.files.upload(rows(6)).id
    return {
        "deployments": {"name": "math", "model": model},
        "batches": {"input_file_id": file, "model": model},
        "distillations": {"prompts_file": file, "model": model},
        "evaluations": {"speculator_id": speculator.pk, "prompts_file": file},
        "pipelines": {"name": "math", "model": model, "prompts_file": file},
    }.__getitem__


@pytest.mark.parametrize("resource", RESOURCES)
def test_plan_returns_a_plan_and_creates_no_object(client: Client, arguments: Arguments, resource: str) -> None:
    plan = getattr(client, resource).plan(**arguments(resource), engine=OPTIONS)

    assert isinstance(plan, PipelinePlan if resource == "pipelines" else EnginePlan)
    stages = [plan.distillation, plan.evaluation, plan.deployment] if isinstance(plan, PipelinePlan) else [plan]
    for stage in stages:
        assert stage is not None
        (device,) = stage.devices
        assert (device.device_kind, device.fits, device.max_context) == ("cpu", True, 512)
        assert device.sequences[-1]["tokens"] == 512
    assert list(getattr(client, resource).list()) == []


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_created_object_has_the_given_engine_options(client: Client, arguments: Arguments, resource: str) -> None:
    made = getattr(client, resource).create(**arguments(resource), engine=OPTIONS)

    assert made.engine.items() >= OPTIONS.items()
    assert getattr(client, resource).retrieve(made.id).engine == made.engine


def test_the_plan_of_a_pipeline_that_deploys_nothing_has_no_deployment(client: Client, arguments: Arguments) -> None:
    plan = client.pipelines.plan(**arguments("pipelines"), deploy=False)

    assert plan.deployment is None
    assert plan.distillation is not None


@pytest.mark.parametrize("resource", RESOURCES)
def test_the_error_for_an_unknown_option_names_the_option(client: Client, arguments: Arguments, resource: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        getattr(client, resource).plan(**arguments(resource), engine={"weight": "int8"})

    assert (caught.value.code, caught.value.param) == ("unknown_parameter", "engine.weight")
