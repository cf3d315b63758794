"""What operators can ask for: the API's requests, and the services that its views call with them."""

import json
from collections.abc import Mapping
from typing import Any, cast

from django.db.models import Model, QuerySet
from rest_framework.serializers import Serializer

from control.accounts.models import Organization
from control.adapters.models import Adapter
from control.adapters.selectors import adapters_get, adapters_list
from control.adapters.serializers import AdapterInput
from control.adapters.services import adapter_create
from control.batches.models import Batch
from control.batches.rows import ENDPOINTS
from control.batches.serializers import BatchInput
from control.batches.services import batch_create
from control.catalog.intake import base_model_submit
from control.catalog.models import BaseModel, Speculator
from control.catalog.selectors import base_model_get, base_models_list, speculator_get, speculators_list
from control.catalog.serializers import BaseModelInput
from control.console.asking import Ask
from control.console.request_forms import Choices
from control.datasets.models import Dataset
from control.datasets.serializers import DatasetInput
from control.datasets.services import dataset_create
from control.deployments.models import Deployment
from control.deployments.selectors import deployment_get
from control.deployments.serializers import DeploymentInput, DeploymentUpdateInput
from control.deployments.services import deployment_create, deployment_update
from control.distillations.models import Distillation
from control.distillations.selectors import distillations_list
from control.distillations.serializers import DistillationInput
from control.distillations.services import distillation_create
from control.evaluations.models import Evaluation
from control.evaluations.requests import EvaluationRequest, parse_evaluation_request
from control.evaluations.services import evaluation_create
from control.exchanges.serializers import ExportInput, ImportInput
from control.exchanges.services import speculator_export, speculator_import
from control.files.models import File
from control.files.selectors import file_get, files_list
from control.files.serializers import expires_after
from control.files.services import file_create
from control.openapi.forms import FileForm
from control.pipelines.models import Pipeline
from control.pipelines.requests import PipelineRequest, parse_pipeline_request
from control.pipelines.services import pipeline_create
from control.quotes.selectors import quote_get, quotes_list
from control.rollouts.decision import Terms
from control.rollouts.models import Rollout
from control.rollouts.serializers import RolloutInput
from control.rollouts.services import rollout_create
from workers.hyperparameters.kinds import KINDS

MOST = 500  # that a field offers, newest first
_EXPIRIES = [
    (json.dumps({"anchor": "created_at", "seconds": days * 86400}), f"after {days} days") for days in (1, 7, 30)
]


def _checked(contract: type[Serializer[dict[str, Any]]], body: dict[str, Any]) -> dict[str, Any]:
    form = contract(data=body)
    form.is_valid(raise_exception=True)
    return cast(dict[str, Any], form.validated_data)


def _ids(rows: QuerySet[Any]) -> Choices:
    return [(row.pk, str(row) if row.pk in str(row) else f"{row} ({row.pk})") for row in rows.order_by("-pk")[:MOST]]


def _same(values: tuple[str, ...]) -> Choices:
    return [(value, value) for value in values]


def _models(organization: Organization) -> Choices:
    return [(name, name) for name in base_models_list(organization).order_by("name").values_list("name", flat=True)]


def _prompts(organization: Organization) -> Choices:
    return _ids(files_list(organization, purpose=File.Purpose.BATCH))


def _ready(organization: Organization) -> Choices:
    return _ids(speculators_list(organization).filter(status=Speculator.Status.READY))


def _create_deployment(organization: Organization, body: dict[str, Any]) -> Deployment:
    values = _checked(DeploymentInput, body)
    speculator = values["speculator_id"] and speculator_get(organization, values["speculator_id"])
    return deployment_create(
        organization=organization,
        name=values["name"],
        base_model=base_model_get(organization, values["model"]),
        speculator=speculator,
        adapters=adapters_get(organization, values["adapters"]),
    )


def _serving(organization: Organization) -> Mapping[str, Choices]:
    return {"speculator_id": _ready(organization), "adapters": _ids(adapters_list(organization))}


CREATE_DEPLOYMENT = Ask(
    title="Create a deployment",
    contract=DeploymentInput,
    run=_create_deployment,
    choices=lambda organization: {"model": _models(organization), **_serving(organization)},
)


def _change_deployment(row: Deployment, body: dict[str, Any]) -> Deployment:
    values, deployment = _checked(DeploymentUpdateInput, body), deployment_get(row.organization, row.pk)
    chosen = values["speculator_id"]
    adapters = adapters_get(row.organization, values["adapters"]) if "adapters" in values else None
    return deployment_update(
        deployment=deployment,
        speculator=None if chosen is None else speculator_get(row.organization, chosen),
        adapters=adapters,
    )


CHANGE_DEPLOYMENT = Ask(
    title="Change what it serves",
    contract=DeploymentUpdateInput,
    run=_change_deployment,
    choices=_serving,
    initial=lambda row: {
        "speculator_id": row.speculator_id,
        "adapters": [adapter.pk for adapter in row.adapters.all()],
    },
)


def _roll_out(row: Deployment, body: dict[str, Any]) -> Rollout:
    values = _checked(RolloutInput, body)
    terms = Terms(
        min_requests=values["min_requests"],
        max_acceptance_drop=values["max_acceptance_drop"],
        max_error_rate=values["max_error_rate"],
    )
    return rollout_create(
        deployment=deployment_get(row.organization, row.pk),
        speculator=speculator_get(row.organization, values["speculator_id"]),
        share_percent=values["share_percent"],
        terms=terms,
        max_seconds=values["max_seconds"],
    )


ROLL_OUT = Ask(
    title="Roll out a speculator",
    contract=RolloutInput,
    run=_roll_out,
    choices=lambda organization: {"speculator_id": _ready(organization)},
)


def _create_pipeline(organization: Organization, body: dict[str, Any]) -> Pipeline:
    return pipeline_create(organization=organization, request=parse_pipeline_request(body))


CREATE_PIPELINE = Ask(
    title="Create a pipeline",
    contract=PipelineRequest,
    run=_create_pipeline,
    choices=lambda organization: {
        "model": _models(organization),
        "prompts_file": _prompts(organization),
        "held_out_file": _prompts(organization),
        "distillation_id": _ids(distillations_list(organization)),
        "quote_id": _ids(quotes_list(organization)),
        "training.kind": _same(KINDS),
        "training.initial_speculator": _ready(organization),
    },
)


def _upload_file(organization: Organization, body: dict[str, Any]) -> File:
    values = _checked(FileForm, body)
    return file_create(
        organization=organization,
        filename=values["file"].name,
        purpose=values["purpose"],
        source=values["file"],
        expires_after=expires_after(values.get("expires_after")),
    )


UPLOAD_FILE = Ask(
    title="Upload a file",
    contract=FileForm,
    run=_upload_file,
    choices=lambda organization: {"expires_after": _EXPIRIES},
)


def _create_batch(organization: Organization, body: dict[str, Any]) -> Batch:
    values = _checked(BatchInput, body)
    return batch_create(
        organization=organization,
        input_file=file_get(organization, values["input_file_id"], param="input_file_id"),
        endpoint=values["endpoint"],
        completion_window=values["completion_window"],
        metadata=values["metadata"],
        model=values["model"],
        output_expires_after=expires_after(values["output_expires_after"], param="output_expires_after"),
        quote=values["quote_id"] and quote_get(organization, values["quote_id"]),
    )


CREATE_BATCH = Ask(
    title="Create a batch",
    contract=BatchInput,
    run=_create_batch,
    choices=lambda organization: {
        "input_file_id": _prompts(organization),
        "endpoint": _same(ENDPOINTS),
        "model": _models(organization),
        "output_expires_after": _EXPIRIES,
        "quote_id": _ids(quotes_list(organization)),
    },
)


def _create_distillation(organization: Organization, body: dict[str, Any]) -> Distillation:
    values = _checked(DistillationInput, body)
    return distillation_create(
        organization=organization,
        base_model=base_model_get(organization, values["model"]),
        prompts_file=file_get(organization, values["prompts_file"], param="prompts_file"),
        quote=values["quote_id"] and quote_get(organization, values["quote_id"]),
        metadata=values["metadata"],
    )


CREATE_DISTILLATION = Ask(
    title="Create a distillation",
    contract=DistillationInput,
    run=_create_distillation,
    choices=lambda organization: {
        "model": _models(organization),
        "prompts_file": _prompts(organization),
        "quote_id": _ids(quotes_list(organization)),
    },
)


def _register_model(organization: Organization, body: dict[str, Any]) -> BaseModel:
    values = _checked(BaseModelInput, body)
    return base_model_submit(organization=organization, **values)


REGISTER_MODEL = Ask(
    title="Register a base model", contract=BaseModelInput, run=_register_model, choices=lambda organization: {}
)


def _import_speculator(organization: Organization, body: dict[str, Any]) -> Speculator:
    values = _checked(ImportInput, body)
    return speculator_import(
        organization=organization,
        file=file_get(organization, values["file_id"]),
        form=values["format"],
        base_model=base_model_get(organization, values["model"]),
        name=values["name"],
    )


IMPORT_SPECULATOR = Ask(
    title="Import a speculator",
    contract=ImportInput,
    run=_import_speculator,
    choices=lambda organization: {"file_id": _ids(files_list(organization)), "model": _models(organization)},
)


def _export_speculator(row: Speculator, body: dict[str, Any]) -> Model:
    values = _checked(ExportInput, body)
    return speculator_export(speculator=speculator_get(row.organization, row.pk), form=values["format"])


EXPORT_SPECULATOR = Ask(title="Export", contract=ExportInput, run=_export_speculator, choices=lambda organization: {})


def _create_evaluation(organization: Organization, body: dict[str, Any]) -> Evaluation:
    asked = parse_evaluation_request(body)
    prompts = None if asked.prompts_file is None else file_get(organization, asked.prompts_file, param="prompts_file")
    speculator = speculator_get(organization, asked.speculator_id)
    return evaluation_create(organization=organization, speculator=speculator, prompts=prompts, request=asked)


CREATE_EVALUATION = Ask(
    title="Evaluate a speculator",
    contract=EvaluationRequest,
    run=_create_evaluation,
    choices=lambda organization: {
        "speculator_id": _ready(organization),
        "prompts_file": _prompts(organization),  # none but those of the purpose that the API demands
    },
)


def _create_dataset(organization: Organization, body: dict[str, Any]) -> Dataset:
    values = _checked(DatasetInput, body)
    return dataset_create(
        organization=organization,
        file=file_get(organization, values["file_id"]),
        base_model=values["model"] and base_model_get(organization, values["model"]),
    )


CREATE_DATASET = Ask(
    title="Validate a dataset",
    contract=DatasetInput,
    run=_create_dataset,
    choices=lambda organization: {"file_id": _ids(files_list(organization)), "model": _models(organization)},
)


def _create_adapter(organization: Organization, body: dict[str, Any]) -> Adapter:
    values = _checked(AdapterInput, body)
    return adapter_create(
        organization=organization,
        name=values["name"],
        base_model=base_model_get(organization, values["model"]),
        config_file=file_get(organization, values["config_file"], param="config_file"),
        weights_file=file_get(organization, values["weights_file"], param="weights_file"),
    )


CREATE_ADAPTER = Ask(
    title="Create an adapter",
    contract=AdapterInput,
    run=_create_adapter,
    choices=lambda organization: {
        "model": _models(organization),
        "config_file": _ids(files_list(organization)),
        "weights_file": _ids(files_list(organization)),
    },
)
