"""The memory of an endpoint is planned before its deployment is created, and the engine gets the same options."""

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from pytest_django import Settings

from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.models.catalog.models import BaseModel
from control.models.catalog.services import base_model_register
from control.models.engines.schemas import EngineOptions
from control.serving.deployments.launchers.engine_process import _command
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import canary_create, deployment_create
from control.serving.deployments.supervisor import SupervisorTimings
from control.tenants.accounts.models import Organization
from control.tenants.idempotency.models import IdempotencyKey
from tests.control.factories import make_base_model
from tests.control.serving.deployments.support import make_speculator
from tests.tiny_model import make_tiny_model
from tests.workers.test_planning import SMOLLM2
from workers.model_sizes import ModelSizes
from workers.planning import Wanted, plan

SIZES = ModelSizes.of(SMOLLM2)


@pytest.fixture
def model(db: None) -> BaseModel:
    made = make_base_model()
    made.sizes = asdict(SIZES)
    made.save()
    return made


def use(settings: Settings, **values: Any) -> None:
    settings.SLIPSTREAM = get_config().model_copy(update=values)


def post(client: Client, **body: Any) -> tuple[int, dict[str, Any]]:
    response = client.post("/v1/deployments", body, content_type="application/json")
    return response.status_code, response.json()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_validate_only_answers_with_the_plan_and_creates_nothing(
    client: Client, model: BaseModel, settings: Settings, device: str
) -> None:
    use(settings, device=device, endpoint_memory_bytes=4 * 10**9, price_per_gpu_hour=2.5)
    options = {"weights": "int8", "max_context": 4096, "max_concurrency": 8}

    status, body = post(client, name="planned", model=model.name, engine=options, validate_only=True)

    expected = plan(SIZES, Wanted(device=device, memory_bytes=4 * 10**9, weights="int8", context=4096, concurrency=8))
    assert status == 200
    (planned,) = body["devices"]
    assert planned == {
        "device_kind": device,
        "hardware": None,
        "fits": True,
        "reason": None,
        "memory_bytes": 4 * 10**9,
        "parts": asdict(expected.parts),
        "max_context": 4096,
        "max_concurrency": 8,
        "kv_tokens": expected.kv_slots,
        "sequences": [{"tokens": n, "num_sequences": expected.num_sequences(n)} for n in (512, 2048, 4096)],
        "price_per_hour": 2.5,
    }
    assert not Deployment.objects.exists()


@pytest.mark.parametrize("validate_only", [True, False])
def test_the_error_for_a_context_that_does_not_fit_states_the_needed_memory(
    client: Client, model: BaseModel, settings: Settings, validate_only: bool
) -> None:
    use(settings, endpoint_memory_bytes=10**9)

    status, body = post(client, name="a", model=model.name, engine={"max_context": 8192}, validate_only=validate_only)

    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "does_not_fit", "engine")
    assert "one sequence of 8,192 tokens needs" in body["error"]["message"]
    assert "weights 0.33 GB" in body["error"]["message"]
    assert not Deployment.objects.exists()


def test_memory_for_the_weights_of_a_speculator_is_planned(
    client: Client, model: BaseModel, organization: Organization, tmp_path: Path
) -> None:
    speculator = make_speculator(model, organization)
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    (artifact / "model.safetensors").write_bytes(bytes(12_345))
    (artifact / "report.json").write_bytes(bytes(999))
    get_storage().put_folder(speculator.storage_prefix, artifact)

    _, body = post(client, name="a", model=model.name, speculator_id=speculator.pk, validate_only=True)

    assert body["devices"][0]["parts"]["speculator"] == 12_345


def test_a_gpu_whose_memory_the_operators_did_not_state_is_not_planned(
    client: Client, model: BaseModel, settings: Settings
) -> None:
    use(settings, device="cuda")

    status, body = post(client, name="a", model=model.name, validate_only=True)

    (planned,) = body["devices"]
    assert (status, planned["parts"], planned["kv_tokens"]) == (200, None, None)
    assert (planned["fits"], planned["reason"]["code"]) == (None, "device_memory_unknown")


def test_the_engine_gets_the_options_of_its_deployment(
    client: Client, settings: Settings, tmp_path: Path, organization: Organization
) -> None:
    use(settings, endpoint_memory_bytes=3 * 10**9)
    model = base_model_register(name="tiny", path=make_tiny_model(tmp_path / "tiny"))
    assert model.sizes is not None
    options = {
        "weights": "int8",
        "kv_dtype": "auto",
        "max_context": 512,
        "max_concurrency": 4,
        "memory_share": 0.5,
        "drafting": "suffix",
        "draft_budget": 6,
    }

    status, body = post(client, name="a", model="tiny", engine=options)
    words = words_of_command()

    assert (status, body["engine"]) == (201, options)
    expected = {
        "--weights": "int8",
        "--kv-dtype": "auto",
        "--max-batch-size": "4",
        "--max-seq-len": "512",
        "--memory-bytes": "1500000000",  # the requested share of the memory that the operators allow an endpoint
        "--drafter": "suffix",
        "--draft-budget": "6",
    }
    assert {name: words[name] for name in expected} == expected
    assert float(words["--drain-seconds"]) > SupervisorTimings().drain_seconds  # otherwise it would cut streams first
    assert "--memory-share" not in words  # the engine accepts only one of the two memory options


def test_without_a_memory_limit_of_the_operators_the_engine_gets_the_memory_share_itself(
    client: Client, tmp_path: Path
) -> None:
    base_model_register(name="tiny", path=make_tiny_model(tmp_path / "tiny"))

    status, _ = post(client, name="a", model="tiny", engine={"memory_share": 0.25})

    assert status == 201
    assert words_of_command()["--memory-share"] == "0.25"
    assert "--memory-bytes" not in words_of_command()


def test_a_deployment_stored_by_an_earlier_release_starts_its_engine_with_the_same_options(
    client: Client, tmp_path: Path
) -> None:
    base_model_register(name="tiny", path=make_tiny_model(tmp_path / "tiny"))
    post(client, name="a", model="tiny")
    before = words_of_command()

    for stored in (None, {"weights": "auto", "max_context": None, "max_concurrency": 16}):
        Deployment.objects.update(engine=stored)

        assert words_of_command() == before
        assert client.get("/v1/deployments").json()["data"][0]["engine"]["weights"] == "auto"
    assert (before["--max-batch-size"], before["--weights"], before["--kv-dtype"]) == ("16", "auto", "auto")
    assert not {"--drafter", "--draft-budget", "--memory-share", "--memory-bytes", "--max-seq-len"} & before.keys()


def words_of_command() -> dict[str, str]:
    command = _command(get_config(), Deployment.objects.get(), device="", host=None, port=1, speculator_dir=None)
    return dict(itertools.pairwise(command))


def test_a_canary_gets_the_engine_options_of_its_deployment(model: BaseModel, organization: Organization) -> None:
    options = EngineOptions(weights="int8", max_context=2048)
    deployment = deployment_create(organization=organization, name="a", base_model=model, engine=options)

    canary = canary_create(deployment=deployment, speculator=make_speculator(model, organization))

    assert canary.engine == options.model_dump()


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"weights": "int3"}, "engine.weights"),
        ({"max_context": 0}, "engine.max_context"),
        ({"max_concurrency": 257}, "engine.max_concurrency"),
        ({"contexts": 5}, "engine.contexts"),
        ({"memory_share": 0}, "engine.memory_share"),
        ({"memory_share": 1.01}, "engine.memory_share"),
        ({"kv_dtype": "fp8"}, "engine.kv_dtype"),
        ({"drafting": "medusa"}, "engine.drafting"),
        ({"draft_budget": 257}, "engine.draft_budget"),
        ({"draft_budget": True}, "engine.draft_budget"),
    ],
)
def test_the_error_for_an_unknown_or_impossible_option_names_it(
    client: Client, model: BaseModel, options: dict[str, Any], param: str
) -> None:
    status, body = post(client, name="a", model=model.name, engine=options)

    assert (status, body["error"]["param"]) == (400, param)


def test_a_canary_and_a_new_speculator_must_agree_with_the_drafting_of_the_deployment(
    client: Client, model: BaseModel, organization: Organization
) -> None:
    speculator = make_speculator(model, organization)
    deployment = deployment_create(
        organization=organization, name="a", base_model=model, engine=EngineOptions(drafting="ngram")
    )

    with pytest.raises(ApiError) as refused:
        canary_create(deployment=deployment, speculator=speculator)
    response = client.patch(
        f"/v1/deployments/{deployment.pk}", {"speculator_id": speculator.pk}, content_type="application/json"
    )

    assert refused.value.code == "drafting_conflict"
    assert (response.status_code, response.json()["error"]["code"]) == (400, "drafting_conflict")
    assert Deployment.objects.get().speculator is None


def test_a_plan_does_not_use_up_its_idempotency_key_and_can_be_requested_again(
    client: Client, model: BaseModel
) -> None:
    key = {"Idempotency-Key": "k"}
    wanted = {"name": "a", "model": model.name}

    def send(**body: Any) -> Any:
        return client.post("/v1/deployments", {**wanted, **body}, content_type="application/json", headers=key)

    planned = send(validate_only=True)
    assert not IdempotencyKey.objects.exists()
    created = send()
    again = send(validate_only=True)

    assert [planned.status_code, created.status_code, again.status_code] == [200, 201, 200]
    assert again.json() == planned.json()
    assert Deployment.objects.count() == IdempotencyKey.objects.count() == 1


@pytest.mark.parametrize("value", ["true", 1, "yes"])
def test_validate_only_accepts_only_true_and_false(client: Client, model: BaseModel, value: Any) -> None:
    """If only a part of the code took such a value for true, a plan could use up an idempotency key."""
    status, body = post(client, name="a", model=model.name, validate_only=value)

    assert (status, body["error"]["param"]) == (400, "validate_only")
    assert not Deployment.objects.exists()
