"""Engine options and `validate_only` in the requests that create resources with an engine."""

import json
from dataclasses import asdict
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from pytest_django import Settings

from control.core.settings.config import get_config
from control.models.catalog.models import Speculator
from control.tenants.accounts.models import Organization
from control.tenants.idempotency.models import IdempotencyKey
from control.workflows.evaluations.models import Evaluation
from control.workflows.pipelines.services import pipeline_cancel, pipeline_resume
from tests.control.factories import make_base_model, make_organization
from tests.control.workflows.pipelines.helpers import advance_to_stage, end_evaluation, make_pipeline
from tests.control.world import World, example_bodies, with_reference
from tests.workers.test_planning import SMOLLM2
from workers.model_sizes import ModelSizes

PATHS = ("/v1/deployments", "/v1/batches", "/v1/distillations", "/v1/evaluations", "/v1/pipelines")
OPTIONS = {
    "weights": "int8",
    "kv_dtype": "auto",
    "max_context": 512,
    "max_concurrency": 32,
    "memory_share": 0.5,
    "drafting": None,
    "draft_budget": 6,
}
REFERENCES = [
    (path, member, kind)
    for path in PATHS
    for member, kind in example_bodies()[f"POST {path}"].references.items()
    if member != "model"  # all organizations share the example model
]


@pytest.fixture
def world(organization: Organization) -> World:
    return World(organization)


def body_of(world: World, path: str, **values: Any) -> dict[str, Any]:
    named = {} if path == "/v1/evaluations" else {"model": world.base_model.name}
    return {**example_bodies()[f"POST {path}"].make(world), **named, **values}


def send(client: Client, path: str, body: dict[str, Any], **headers: str) -> Any:
    return client.post(path, body, content_type="application/json", headers=headers)


def give_sizes(world: World) -> None:
    world.base_model.sizes = asdict(ModelSizes.of(SMOLLM2))
    world.base_model.save()


def all_rows() -> str:
    """Returns every row of every table, without the column `last_used_at` of API keys, which any request may change."""
    models = [model for model in apps.get_models() if model.__module__.startswith("control.")]
    rows = {model.__name__: list(model._default_manager.values()) for model in models}
    for key in rows["ApiKey"]:
        key.pop("last_used_at")
    return json.dumps(rows, default=str, sort_keys=True)


def plans_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the plans of all engines; a pipeline has three."""
    if answer["object"] == "engine.plan":
        return [answer]
    return [answer[stage] for stage in ("distillation", "evaluation", "deployment")]


@pytest.mark.parametrize("path", PATHS)
def test_a_plan_changes_no_row_and_does_not_use_up_its_idempotency_key(client: Client, world: World, path: str) -> None:
    give_sizes(world)
    body = body_of(world, path, engine={**OPTIONS, "memory_share": None})
    before = all_rows()

    planned = send(client, path, {**body, "validate_only": True}, **{"Idempotency-Key": "k"})

    assert planned.status_code == 200, planned.content
    assert all_rows() == before
    for plan in plans_of(planned.json()):
        (device,) = plan["devices"]
        assert (device["fits"], device["max_context"]) == (True, 512)
        assert device["sequences"][0]["num_sequences"] > 0
    created = send(client, path, {**body, "validate_only": False}, **{"Idempotency-Key": "k"})
    assert created.status_code in (200, 201), created.content
    assert "id" in created.json()
    assert IdempotencyKey.objects.count() == 1


@pytest.mark.parametrize("path", PATHS)
def test_the_error_for_a_model_that_does_not_fit_states_the_bytes_of_each_part(
    client: Client, world: World, settings: Settings, path: str
) -> None:
    give_sizes(world)
    body = body_of(world, path, engine={**OPTIONS, "memory_share": 0.1})
    settings.SLIPSTREAM = get_config().model_copy(
        update={"device": "cpu", "device_memory_bytes": {"cpu": 10**9}, "endpoint_memory_bytes": 10**9}
    )
    before = all_rows()

    for values in ({}, {"validate_only": True}):
        error = send(client, path, {**body, **values}).json()["error"]

        assert (error["code"], error["param"]) == ("does_not_fit", "engine")
        assert "weights 0.1" in error["message"]
        assert "the engine may use 0.10 GB" in error["message"]
    assert {**json.loads(all_rows()), "AuditEvent": []} == {**json.loads(before), "AuditEvent": []}


@pytest.mark.parametrize("path", PATHS)
def test_a_plan_is_not_limited_by_quotas(client: Client, world: World, settings: Settings, path: str) -> None:
    body = body_of(world, path)
    settings.SLIPSTREAM = get_config().model_copy(update={"max_queued_jobs": 0, "max_deployments": 0, "max_devices": 0})

    assert send(client, path, {**body, "validate_only": True}).status_code == 200
    assert send(client, path, body).status_code == 429


@pytest.mark.parametrize(("path", "member", "kind"), REFERENCES)
def test_a_plan_refuses_the_object_of_another_organization_like_one_that_does_not_exist(
    client: Client, world: World, path: str, member: str, kind: str
) -> None:
    body = {**body_of(world, path), "validate_only": True}
    foreign = World(make_organization()).id_of(kind)

    foreign_answer = send(client, path, with_reference(body, member, foreign))
    unknown_answer = send(client, path, with_reference(body, member, "unknown"))

    assert foreign_answer.status_code == unknown_answer.status_code == 404
    assert foreign_answer.content.replace(foreign.encode(), b"unknown") == unknown_answer.content


@pytest.mark.parametrize("path", PATHS)
def test_the_engine_options_of_a_request_are_stored_and_shown(client: Client, world: World, path: str) -> None:
    made = send(client, path, body_of(world, path, engine=OPTIONS)).json()

    assert made["engine"] == OPTIONS
    assert client.get(f"{path}/{made['id']}").json()["engine"] == OPTIONS


@pytest.mark.parametrize("path", PATHS)
def test_an_object_without_engine_options_shows_the_defaults(client: Client, world: World, path: str) -> None:
    made = send(client, path, body_of(world, path)).json()

    assert (made["engine"]["weights"], made["engine"]["max_concurrency"]) == ("auto", None)


def test_a_pipeline_passes_its_engine_options_to_its_stages_even_after_it_was_resumed(db: None) -> None:
    options = {**OPTIONS, "drafting": "speculator"}
    pipeline = make_pipeline(engine=options)
    assert pipeline.batch is not None
    distilled = {"max_concurrency": None, "drafting": None, "draft_budget": None}
    assert pipeline.batch.engine == {**options, **distilled}

    pipeline = advance_to_stage("evaluate", pipeline)
    pipeline = pipeline_resume(pipeline=pipeline_cancel(pipeline=pipeline))
    assert pipeline.evaluation_job is not None
    assert pipeline.evaluation_job.params["engine"] == options
    assert [row.settings["engine"] for row in Evaluation.objects.all()] == [options, options]

    deployment = end_evaluation(pipeline).deployment
    assert deployment is not None
    assert deployment.engine == options


def test_the_jobs_of_a_pipeline_state_the_memory_that_they_need(db: None) -> None:
    model = make_base_model()
    model.sizes, model.model_type = asdict(ModelSizes.of(SMOLLM2)), "llama"
    model.save()

    pipeline = advance_to_stage("deploy", make_pipeline(base_model=model, engine={"weights": "int4"}))

    assert pipeline.batch is not None
    jobs = [pipeline.batch.job, pipeline.training_job, pipeline.evaluation_job]
    needed = [job.memory_needed for job in jobs if job is not None]
    assert [sorted(memory or ()) for memory in needed] == [["cpu"], ["cpu", "cuda"], ["cpu"]]
    assert all(10**8 < number < 10**10 for memory in needed for number in (memory or {}).values())


def test_a_pipeline_without_engine_options_passes_no_options_to_its_stages(db: None) -> None:
    pipeline = advance_to_stage("deploy", make_pipeline())

    assert pipeline.batch is not None
    assert pipeline.evaluation_job is not None
    assert pipeline.deployment is not None
    assert pipeline.batch.engine is pipeline.evaluation_job.params["engine"] is pipeline.deployment.engine is None


@pytest.mark.parametrize("path", ["/v1/deployments", "/v1/evaluations"])
def test_a_plan_and_a_creation_give_the_same_error_for_a_speculator_that_is_not_ready(
    client: Client, world: World, path: str
) -> None:
    """A speculator that is not ready has no files. Its storage prefix is empty, and an empty prefix matches the files
    of all organizations."""
    give_sizes(world)
    Speculator.objects.filter(pk=world.speculator.pk).update(status=Speculator.Status.TRAINING, storage_prefix="")
    body = body_of(world, path, speculator_id=world.speculator.pk)

    planned, created = (send(client, path, {**body, "validate_only": only}) for only in (True, False))

    assert (planned.status_code, planned.json()["error"]["code"]) == (409, "speculator_not_ready")
    assert planned.content == created.content


@pytest.mark.parametrize(
    ("path", "values", "code", "param"),
    [
        ("/v1/evaluations", {"engine": {"max_concurrency": 8}}, "concurrency_too_high", "concurrencies"),
        (
            "/v1/pipelines",
            {"engine": {"max_concurrency": 2}, "evaluation": {"concurrencies": [1, 4]}},
            "concurrency_too_high",
            "evaluation.concurrencies",
        ),
        ("/v1/pipelines", {"engine": {"drafting": "ngram"}}, "drafting_conflict", "engine.drafting"),
        ("/v1/evaluations", {"engine": {"drafting": "none"}}, "drafting_conflict", "engine.drafting"),
        ("/v1/batches", {"engine": {"drafting": "speculator"}}, "speculator_required", "engine.drafting"),
        ("/v1/distillations", {"engine": {"drafting": "native_mtp"}}, "drafting_not_supported", "engine.drafting"),
        ("/v1/distillations", {"engine": {"weight": "int8"}}, "unknown_parameter", "engine.weight"),
    ],
)
@pytest.mark.parametrize("validate_only", [True, False])
def test_engine_options_that_contradict_the_request_are_refused(
    client: Client, world: World, path: str, values: dict[str, Any], code: str, param: str, validate_only: bool
) -> None:
    body = body_of(world, path)

    response = send(client, path, {**body, **values, "validate_only": validate_only})

    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)


def test_the_plan_of_a_batch_whose_rows_name_the_model_does_not_say_whether_it_fits(
    client: Client, world: World
) -> None:
    body = {key: value for key, value in body_of(world, "/v1/batches").items() if key != "model"}

    (device,) = send(client, "/v1/batches", {**body, "validate_only": True}).json()["devices"]

    assert (device["fits"], device["reason"]["code"]) == (None, "model_unknown")
