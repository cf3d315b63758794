"""Forms with which operators act for an organization. They follow the API's rules and record one audit event each."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from django.apps import apps
from django.conf import settings
from django.contrib.admin.utils import quote
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.data.files.models import File
from control.models.catalog.models import BaseModel, Speculator
from control.serving.captures.models import Capture
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization, User
from control.tenants.audit.models import AuditEvent
from control.workflows.batches.assemble import batch_assemble
from control.workflows.batches.services import batch_validate
from control.workflows.pipelines.models import Pipeline
from tests.control.factories import make_organization
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.serving.deployments.support import make_speculator
from tests.control.world import World
from tests.tiny_model import make_tiny_model
from tests.workers.exports.speculators import write_speculator

# Maps a table's name in the URL of its add form to the form's audit action and to valid values for the form's fields.
FORMS: dict[str, tuple[str, Callable[[World], dict[str, Any]]]] = {
    "deployments_deployment": (
        "deployment.create",
        lambda world: {
            "name": "fast",
            "model": world.base_model.name,
            "speculator_id": world.speculator.pk,
            "adapters": [world.adapter.pk],
        },
    ),
    "pipelines_pipeline": (
        "pipeline.create",
        lambda world: {
            "name": "fast",
            "model": world.base_model.name,
            "prompts_file": world.file.pk,
            "held_out": "4",
            "training.kind": "medusa",
            "training": '{"epochs": 2}',
            "evaluation.concurrencies": "1, 4",
            "deploy": "false",
        },
    ),
    "files_file": (
        "file.create",
        lambda world: {"purpose": "batch", "file": SimpleUploadedFile("rows.jsonl", b'{"a": 1}\n')},
    ),
    "batches_batch": (
        "batch.create",
        lambda world: {
            "input_file_id": world.file.pk,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "model": world.base_model.name,
            "metadata": '{"for": "them"}',
        },
    ),
    "distillations_distillation": (
        "distillation.create",
        lambda world: {"model": world.base_model.name, "prompts_file": world.file.pk},
    ),
    "evaluations_evaluation": (
        "evaluation.create",
        lambda world: {
            "speculator_id": world.speculator.pk,
            "prompts_file": world.file.pk,
            "concurrencies": "1, 2",
            "repeats": "1",
        },
    ),
    "datasets_dataset": ("dataset.create", lambda world: {"file_id": world.file.pk}),
    "quotes_quote": (
        "quote.create",
        lambda world: {"dataset_id": world.counted_dataset.pk, "basis": "pilot", "cap": "2.5"},
    ),
    "adapters_adapter": (
        "adapter.create",
        lambda world: {
            "name": "tuned",
            "model": world.base_model.name,
            "config_file": world.adapter_files[0].pk,
            "weights_file": world.adapter_files[1].pk,
        },
    ),
}


@pytest.fixture
def operator(db: None) -> Client:
    return operator_client()


@pytest.fixture
def world(organization: Organization) -> World:
    return World(organization)


def add_path(model: str, organization: Organization) -> str:
    return f"{reverse(f'admin:{model}_add')}?organization={organization.pk}"


def button_path(model: str, pk: str, button: str) -> str:
    return reverse(f"admin:{model}_{button}", args=[quote(pk)])


def submit_form(client: Client, path: str, values: Mapping[str, Any]) -> str:
    """Posts a form with valid values, and returns the address to which the response redirects."""
    response = client.post(path, values)
    assert response.status_code == 302, response.context["form"].errors
    return response.headers["Location"]


@pytest.mark.parametrize("model", FORMS)
def test_each_add_form_creates_an_object_of_the_organization_and_one_audit_event(
    operator: Client, world: World, model: str
) -> None:
    make_organization()
    action, values_of = FORMS[model]
    values = values_of(world)
    # Without an organization in its path, the form first asks for the organization.
    assert "Continue" in page(operator, reverse(f"admin:{model}_add"))
    page(operator, add_path(model, world.organization))

    redirected_to = submit_form(operator, add_path(model, world.organization), values)

    event = AuditEvent.objects.get()
    assert (event.action, event.organization, event.actor_id) == (action, world.organization, "operator")
    assert redirected_to == change_path(model, event.object_id)


def test_the_values_of_a_form_are_stored(operator: Client, world: World) -> None:
    for model in ("deployments_deployment", "pipelines_pipeline"):
        submit_form(operator, add_path(model, world.organization), FORMS[model][1](world))

    deployment = Deployment.objects.get()
    assert (deployment.speculator, [*deployment.adapters.all()]) == (world.speculator, [world.adapter])
    pipeline = Pipeline.objects.get()
    assert (pipeline.deploy, pipeline.training["epochs"], pipeline.evaluation["concurrencies"]) == (False, 2, [1, 4])


@pytest.mark.parametrize(
    ("model", "stored_in"),
    [
        ("deployments_deployment", "engine"),
        ("batches_batch", "engine"),
        ("distillations_distillation", "batch__engine"),
        ("evaluations_evaluation", "settings__engine"),
        ("pipelines_pipeline", "engine"),
    ],
)
def test_a_form_takes_engine_options_and_shows_an_error_beside_an_invalid_option(
    operator: Client, world: World, model: str, stored_in: str
) -> None:
    """The form of a deployment has a field for each option. Every other form has one field with a JSON object."""
    path = add_path(model, world.organization)
    form = operator.get(path).context["form"]
    if model == "deployments_deployment":
        field, options = "engine.max_concurrency", {"engine.max_concurrency": "8", "engine.weights": "int8"}
    else:
        field, options = "engine", {"engine": '{"max_concurrency": 8, "weights": "int8"}'}
        assert "A JSON object." in form.fields["engine"].help_text
    values = FORMS[model][1](world)

    refused = operator.post(path, values | options | {field: options[field].replace("8", "0", 1)})
    submit_form(operator, path, values | options)

    assert [*refused.context["form"].errors] == [field]
    rows = apps.get_model(model.replace("_", ".", 1))._default_manager.filter(pk=AuditEvent.objects.get().object_id)
    engine = rows.values_list(stored_in, flat=True).get()
    assert (engine["max_concurrency"], engine["weights"]) == (8, "int8")


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({}, "name", "required"),
        ({"training": '{"epoch": 2}'}, "training", "epoch"),
        ({"training": r'{"epochs": "\u0000"}'}, "training", "valid dictionary"),
        ({"training": "no JSON"}, "training", "valid dictionary"),
        ({"gate.min_speedup": "fast"}, "gate.min_speedup", "valid number, got 'fast'"),
        ({"prompts_file": ""}, "prompts_file", "a pipeline takes prompts_file or distillation_id"),
    ],
)
def test_a_form_shows_the_apis_error_message_beside_the_field_that_caused_it(
    operator: Client, world: World, values: dict[str, str], field: str, message: str
) -> None:
    form_values = FORMS["pipelines_pipeline"][1](world) | values if values else {}

    response = operator.post(add_path("pipelines_pipeline", world.organization), form_values)

    errors = response.context["form"].errors
    assert [*errors] == [field]
    assert message in errors[field][0]
    assert escape(errors[field][0]) in response.content.decode()
    assert not AuditEvent.objects.exists()


def test_objects_of_another_organization_are_neither_offered_nor_accepted(operator: Client, world: World) -> None:
    foreign = World(make_organization()).speculator
    path = add_path("deployments_deployment", world.organization)
    assert foreign.pk not in page(operator, path)

    response = operator.post(path, {"name": "a", "model": world.base_model.name, "speculator_id": foreign.pk})

    assert [*response.context["form"].errors] == ["speculator_id"]
    assert not Deployment.objects.exists()


def test_staff_without_the_permission_cannot_use_the_forms(world: World) -> None:
    onlooker = Client()
    onlooker.force_login(User.objects.create_user("onlooker", is_staff=True))
    change_form_path = button_path("deployments_deployment", world.deployment.pk, "change_served")

    for path in [change_form_path, *(add_path(model, world.organization) for model in FORMS)]:
        assert onlooker.get(path).status_code == 403
        assert onlooker.post(path, {"speculator_id": ""}).status_code == 403


def test_a_form_sent_from_another_site_does_nothing(operator: Client, world: World) -> None:
    operator.handler.enforce_csrf_checks = True

    response = operator.post(add_path("datasets_dataset", world.organization), {"file_id": world.file.pk})

    assert response.status_code == 403


def test_forms_change_and_remove_the_speculator_of_a_deployment(operator: Client, world: World) -> None:
    path = button_path("deployments_deployment", world.deployment.pk, "change_served")
    assert world.speculator.pk in page(operator, path)

    submit_form(operator, path, {"speculator_id": world.speculator.pk})
    world.deployment.refresh_from_db()
    assert world.deployment.speculator == world.speculator
    assert f'<option value="{world.speculator.pk}" selected' in page(operator, path)
    submit_form(operator, path, {"speculator_id": ""})

    world.deployment.refresh_from_db()
    assert world.deployment.speculator is None
    assert [*AuditEvent.objects.values_list("action", flat=True)] == ["deployment.update"] * 2


def test_a_deleted_deployment_cannot_be_changed(operator: Client, world: World) -> None:
    Deployment.objects.filter(pk=world.deployment.pk).update(deleted_at=world.deployment.created_at)

    response = operator.post(
        button_path("deployments_deployment", world.deployment.pk, "change_served"), {"speculator_id": ""}
    )

    assert "No such deployment" in response.context["form"].non_field_errors()[0]


def test_a_speculator_is_rolled_out_to_a_share_of_the_requests(operator: Client, world: World) -> None:
    path = button_path("deployments_deployment", world.deployment.pk, "roll_out")
    refused = operator.post(path, {"speculator_id": world.speculator.pk, "share_percent": "90"})
    assert "less than or equal to 50" in refused.context["form"].errors["share_percent"][0]
    Deployment.objects.update(state=Deployment.State.READY)

    submit_form(operator, path, {"speculator_id": world.speculator.pk, "share_percent": "25"})

    rollout = Rollout.objects.get()
    assert (rollout.speculator, rollout.share_percent, rollout.min_requests) == (world.speculator, 25, 100)
    assert AuditEvent.objects.get().action == "rollout.create"


def test_requests_are_captured_and_written_to_a_file(operator: Client, world: World) -> None:
    pk = world.deployment.pk
    submit_form(operator, button_path("deployments_deployment", pk, "capture"), {"hours": "48"})
    press(operator, "captures_capture", pk, "make_file")

    assert Capture.objects.get().hours == 48
    assert File.objects.get().purpose == File.Purpose.BATCH
    assert [*AuditEvent.objects.order_by("pk").values_list("action", flat=True)] == ["capture.set", "capture.export"]


def test_a_form_repairs_a_batch(operator: Client, world: World) -> None:
    batch = world.batch
    path = button_path("batches_batch", batch.pk, "repair")
    assert path not in operator.get(change_path("batches_batch", batch.pk)).content.decode()
    batch_validate(batch=batch)
    batch_assemble(batch=batch, final="failed")
    assert path in operator.get(change_path("batches_batch", batch.pk)).content.decode()

    refused = operator.post(path, {"rows": ["cut"]})
    submit_form(operator, path, {"rows": ["unfinished", "cut"], "max_tokens": "9"})

    assert "max_tokens" in refused.context["form"].errors
    repaired = batch.resumptions.get()
    assert repaired.repair == {"rows": ["unfinished", "cut"], "max_tokens": 9}
    operator.get(change_path("batches_batch", repaired.pk))


def test_a_form_changes_the_cap_of_a_quote(operator: Client, world: World) -> None:
    path = button_path("quotes_quote", world.quote.pk, "change_cap")

    submit_form(operator, path, {"cap": "3.5"})

    world.quote.refresh_from_db()
    assert world.quote.cap_nanousd == 3_500_000_000
    assert 'value="3.5"' in page(operator, path)


def test_a_base_model_is_registered_only_from_an_allowed_source(
    operator: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "SLIPSTREAM", get_config().model_copy(update={"model_roots": "s3://models"}))
    path = add_path("catalog_basemodel", world.organization)

    refused = operator.post(path, {"name": "new", "source": "/etc"})
    submit_form(operator, path, {"name": "new", "source": "s3://models/new"})

    assert "operators of this service allow" in refused.context["form"].errors["source"][0]
    model = BaseModel.objects.get(name="new")
    assert (model.organization, model.source) == (world.organization, "s3://models/new")
    assert AuditEvent.objects.get().action == "base_model.create"


def test_a_speculator_is_exported_and_imported_again(operator: Client, world: World, tmp_path: Path) -> None:
    model_dir = make_tiny_model(tmp_path, num_layers=4, dtype=torch.bfloat16)
    BaseModel.objects.filter(pk=world.base_model.pk).update(path=str(model_dir))
    own = make_speculator(world.base_model, world.organization, kind="eagle3", storage_prefix="own")
    get_storage().put_folder("own", write_speculator("eagle3", tmp_path / "own", model_dir))
    path = add_path("catalog_speculator", world.organization)
    fields = {"format": "speculators", "model": world.base_model.name, "name": "guest"}

    submit_form(operator, button_path("catalog_speculator", own.pk, "export"), {"format": "speculators"})
    submit_form(operator, path, {"file_id": File.objects.get().pk, **fields})
    refused = operator.post(path, {"file_id": world.file.pk, **fields})

    assert Speculator.objects.get(name="guest").kind == "eagle3"
    assert refused.context["form"].errors
    actions = AuditEvent.objects.order_by("pk").values_list("action", flat=True)
    assert [*actions] == ["speculator.export", "speculator.import"]


def test_a_button_deletes_a_file(operator: Client, world: World) -> None:
    press(operator, "files_file", world.file.pk, "delete")

    assert File.objects.get().deleted_at is not None
    assert AuditEvent.objects.get().action == "file.delete"
