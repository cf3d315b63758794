"""Promise S18 of docs/reliability.md: the key of a project sees the objects of this project only.

`tests/control/test_foreign_ids.py` tests the same promise for the ids and lists of all operations.
"""

import importlib
import json
import threading
import time
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.db import models, transaction
from django.test import Client

from control.billing.spending.models import SpendCap
from control.billing.usage.services import Tokens
from control.data.files.models import File
from control.models.catalog.models import BaseModel
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_claim
from control.tenants.accounts.models import ApiKey, Organization, Project
from control.tenants.accounts.projects import ProjectObject
from control.tenants.administration.services import project_create
from control.tenants.authentication.caller import Caller
from control.tenants.events.services import event_record, events_number
from control.tenants.row_security.scope import as_tenant
from control.tenants.webhooks.models import WebhookDelivery, WebhookEndpoint
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.selectors import pipeline_fresh
from tests.control.calls import call, path_of
from tests.control.factories import add_usage, chat_row, client_of, make_base_model, make_file, make_job
from tests.control.routes import Route, api_routes
from tests.control.serving.deployments.support import make_deployment
from tests.control.workflows.pipelines.helpers import advance_to_stage, make_pipeline
from tests.control.world import World
from workers.supervisor.attempt import Attempt, run_attempt

OPERATIONS = [
    pytest.param(route, method, id=f"{method} {route.path}") for route in api_routes() for method in route.methods
]
ONLY_FOR_ORGANIZATION_KEYS = {
    "GET /v1/audit_events",
    "GET /v1/members",
    "POST /v1/members",
    "GET /v1/members/{member_id}",
    "PATCH /v1/members/{member_id}",
    "DELETE /v1/members/{member_id}",
    "POST /v1/members/{member_id}/invitation",
    "POST /v1/projects",
    "PATCH /v1/projects/{project_id}",
    "POST /v1/projects/{project_id}/archive",
    "GET /v1/organization/exports",
    "POST /v1/organization/exports",
    "GET /v1/organization/exports/{export_id}",
    "DELETE /v1/organization/exports/{export_id}",
    "GET /v1/organization/exports/{export_id}/content",
    "POST /v1/organization/deletion",
}
# The keys are tables and apps whose rows belong to an organization but have no column `project`. The values are the
# reasons.
WITHOUT_PROJECT = {
    "acceptance.AcceptanceWatch": "read through its deployment",
    "accounts.Member": "of the whole organization",
    "accounts.Project": "a project's key sees its own",
    "audit.AuditEvent": "of the whole organization",
    "audit.AuditExport": "of the whole organization",
    "devices.EndpointLease": "of the service; no request shows it",
    "offboarding.OrganizationExport": "of the whole organization",
    "rollouts.RolloutEvidence": "read through its rollout",
    "billing": "billing has columns of its own",
    "captures": "read through their deployment",
    "jobs.Share": "of the whole organization",
    "spending.QuotedUse": "read through its quote",
    "tenancy.Limits": "of the whole organization",
    "tenancy.StorageReservation": "of the whole organization",
    "tenancy.StoredBytes": "of the whole organization",
    "rollouts.Rollout": "read through its deployment",
    "webhooks.WebhookDelivery": "read through its endpoint",
    "webhooks.WebhookSecret": "read through its endpoint",
}


@pytest.fixture
def project(organization: Organization) -> Project:
    return project_create(organization=organization, name="own")


@pytest.fixture
def other_project(organization: Organization) -> Project:
    return project_create(organization=organization, name="other")


@pytest.fixture
def project_client(organization: Organization, project: Project) -> Client:
    return client_of(organization, project=project)


def error_code(response: Any) -> str:
    return str(response.json()["error"]["code"])


@pytest.mark.parametrize(("route", "method"), OPERATIONS)
def test_only_the_listed_operations_need_a_key_without_a_project(
    route: Route, method: str, organization: Organization, project: Project, project_client: Client
) -> None:
    world = World(organization, project)

    response = call(project_client, world, method, route, path_of(route, world))

    is_refused = response.status_code == 403 and error_code(response) == "organization_key_required"
    assert is_refused == (f"{method} {route.path}" in ONLY_FOR_ORGANIZATION_KEYS)


@pytest.mark.parametrize(
    "route",
    [pytest.param(route, id=route.path) for route in api_routes() if route.parameters and "GET" in route.methods],
)
def test_a_key_without_a_project_sees_the_objects_of_all_projects(
    route: Route, organization: Organization, project: Project, client: Client
) -> None:
    world = World(organization, project)

    response = call(client, world, "GET", route, path_of(route, world))

    assert response.status_code != 404 or error_code(response) == "plot_not_found"


def test_a_projects_key_does_not_find_objects_of_no_project_except_base_models(
    organization: Organization, project_client: Client
) -> None:
    world, found = World(organization), []
    for route in api_routes():
        if route.id_parameters and "GET" in route.methods:
            response = call(project_client, world, "GET", route, path_of(route, world))
            if response.status_code not in (403, 404):
                found.append(route.path)

    assert found == ["/v1/base_models/{model_id}", "/v1/models/{name}"]


def test_a_base_model_of_no_project_is_used_by_all_projects_and_deleted_by_none(
    organization: Organization, project_client: Client
) -> None:
    model = make_base_model("shared", organization)
    deployment = {"name": "d", "model": "shared"}

    assert project_client.post("/v1/deployments", deployment, content_type="application/json").status_code == 201
    refused = project_client.delete(f"/v1/base_models/{model.pk}")

    assert (refused.status_code, error_code(refused)) == (403, "base_model_shared")
    assert BaseModel.objects.filter(pk=model.pk).exists()


def test_every_table_with_an_organization_has_a_project_or_is_listed() -> None:
    owned = [
        model
        for model in apps.get_models()
        if any(field.related_model is Organization for field in model._meta.concrete_fields)
    ]
    unlisted = [
        model._meta.label
        for model in owned
        if not has_project(model) and not {model._meta.label, model._meta.app_label} & WITHOUT_PROJECT.keys()
    ]

    assert unlisted == []


def has_project(model: type[models.Model]) -> bool:
    return any(field.attname == "project_id" for field in model._meta.concrete_fields)


def test_a_new_key_belongs_to_the_project_of_the_key_that_creates_it(
    organization: Organization, project: Project, project_client: Client
) -> None:
    created = project_client.post("/v1/api_keys", {"name": "new"}, content_type="application/json").json()

    assert created["project_id"] == project.pk
    assert ApiKey.objects.get(pk=created["id"]).project == project


def test_a_project_key_caps_the_spending_of_its_project(project: Project, project_client: Client) -> None:
    created = project_client.post("/v1/spend_caps", {"amount": 5}, content_type="application/json").json()

    assert created["project_id"] == project.pk
    assert SpendCap.objects.get().project == project


def test_usage_and_costs_are_those_of_the_keys_project(
    organization: Organization, project: Project, other_project: Project, project_client: Client, client: Client
) -> None:
    for owner, tokens in ((project.pk, 1), (other_project.pk, 10), ("", 100)):
        caller = Caller(organization_id=organization.pk, project_id=owner)
        add_usage(caller, tokens=Tokens(input=tokens), model=f"model-{tokens}")

    def seen(one: Client) -> tuple[int, list[int]]:
        start = int(time.time()) - 3600
        buckets = one.get(f"/v1/organization/usage/completions?start_time={start}").json()["data"]
        inputs = [result["input_tokens"] for bucket in buckets for result in bucket["results"]]
        return one.get("/v1/usage").json()["input_tokens"], inputs

    total, buckets = seen(project_client)
    assert (total, sum(buckets)) == (1, 1)
    assert seen(client)[0] == 111


def test_an_idempotency_key_is_separate_for_each_project(
    organization: Organization, project_client: Client, other_project: Project, client: Client
) -> None:
    def create(one: Client) -> Any:
        body, headers = {"url": "https://example.com", "events": ["*"]}, {"Idempotency-Key": "once"}
        return one.post("/v1/webhook_endpoints", body, content_type="application/json", headers=headers)

    clients = [project_client, client_of(organization, project=other_project), client]
    created = [create(one).json()["id"] for one in clients]

    assert len(set(created)) == 3
    assert [create(one).json()["id"] for one in clients] == created


def test_a_webhook_of_a_project_receives_events_of_its_project_only(
    organization: Organization, project: Project, other_project: Project
) -> None:
    endpoints = {
        name: WebhookEndpoint.objects.create(organization=organization, project=owner, url="u", events=["*"])
        for name, owner in (("organization", None), ("own", project), ("other", other_project))
    }

    with transaction.atomic():
        event_record(
            organization_id=organization.pk, project_id=project.pk, type="batch.completed", object_id="batch_1"
        )
        event_record(organization_id=organization.pk, project_id=None, type="batch.completed", object_id="batch_2")

    received = {
        name: sorted(WebhookDelivery.objects.filter(endpoint=endpoint).values_list("object_id", flat=True))
        for name, endpoint in endpoints.items()
    }
    assert received == {"organization": ["batch_1", "batch_2"], "own": ["batch_1"], "other": []}


def test_events_of_an_object_belong_to_its_project(
    organization: Organization, project: Project, project_client: Client, client: Client
) -> None:
    batch = World(organization, project).batch
    client.post(f"/v1/batches/{batch.pk}/cancel")  # a key without a project changes the project's object

    events_number(organization)
    seen = [event["type"] for event in project_client.get("/v1/events").json()["data"]]

    assert {"job.queued", "batch.cancelling", "job.cancel_requested"} <= set(seen)


def test_what_the_stages_of_a_pipeline_create_belongs_to_its_project(
    organization: Organization, project: Project
) -> None:
    base_model = make_base_model()
    with as_tenant(organization.pk, project.pk):
        pipeline = make_pipeline(organization, base_model=base_model)

    assert projects_of_parts(advance_to_stage("deploy", pipeline)) == {project}


def projects_of_parts(pipeline: Pipeline) -> set[Project | None]:
    """The projects of the pipeline and of everything that its stages have created."""
    assert pipeline.batch is not None
    assert pipeline.evaluation_job is not None
    parts: list[Any] = [pipeline, pipeline.batch, pipeline.batch.job, pipeline.training_job, pipeline.evaluation_job]
    parts += [pipeline.evaluation_job.evaluation, pipeline.speculator, pipeline.deployment]
    for part in parts:
        part.refresh_from_db()
    return {part.project for part in parts}


def test_a_worker_makes_the_files_of_a_job_in_the_jobs_project(organization: Organization, project: Project) -> None:
    class MakesAFile:
        def run(self, attempt: Attempt) -> dict[str, Any]:
            make_file(attempt.job.organization)
            return {}

        def end(self, *_: object) -> None: ...

    with as_tenant(organization.pk, project.pk):
        job = make_job(organization)
    claim = job_claim(job_id=job.pk, worker="w")
    assert claim is not None
    run_attempt(claim, stop=threading.Event(), handlers={Job.Kind.TRAINING: MakesAFile()})

    assert File.objects.get().project == project


def test_a_key_can_be_restricted_only_to_deployments_of_its_project(
    organization: Organization, project: Project, client: Client
) -> None:
    deployment = make_deployment(make_base_model(), organization)
    body = {"name": "new", "project_id": project.pk, "deployment_ids": [deployment.pk]}

    response = client.post("/v1/api_keys", body, content_type="application/json")

    assert (response.status_code, error_code(response)) == (404, "deployment_not_found")


def test_the_migration_assigns_each_object_to_the_project_of_the_key_that_created_it(
    organization: Organization, project: Project, project_client: Client, client: Client
) -> None:
    make_base_model("m")
    of_project, of_organization = (create_pipeline(one, name) for one, name in ((project_client, "a"), (client, "b")))
    for model in apps.get_models():
        if issubclass(model, ProjectObject):
            model._default_manager.update(project=None)

    importlib.import_module("control.workflows.pipelines.migrations.0006_fill_projects").fill(apps, None)

    assert projects_of_parts(pipeline_fresh(of_project)) == {project}
    assert projects_of_parts(pipeline_fresh(of_organization)) == {None}
    assert list(File.objects.filter(filename="prompts.jsonl").order_by("pk").values_list("project", flat=True)) == [
        project.pk,
        None,
    ]


def create_pipeline(client: Client, name: str) -> Pipeline:
    rows = "".join(f"{json.dumps(chat_row(f'row-{number}', content=str(number)))}\n" for number in range(20))
    form = {"purpose": "batch", "file": SimpleUploadedFile("prompts.jsonl", rows.encode())}
    body = {"name": name, "model": "m", "prompts_file": client.post("/v1/files", form).json()["id"]}
    pipeline_id = client.post("/v1/pipelines", body, content_type="application/json").json()["id"]
    return advance_to_stage("deploy", Pipeline.objects.get(pk=pipeline_id))


def test_an_operator_moves_objects_into_a_project(
    organization: Organization, project: Project, other_organization: Organization, project_client: Client
) -> None:
    file, foreign = make_file(organization), make_file(other_organization)

    call_command("project_assign", project.pk, file.pk, stdout=StringIO())
    with pytest.raises(CommandError, match=foreign.pk):
        call_command("project_assign", project.pk, file.pk, foreign.pk)

    assert project_client.get(f"/v1/files/{file.pk}").status_code == 200
    foreign.refresh_from_db()
    assert foreign.project is None
