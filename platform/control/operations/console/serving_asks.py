"""What operators can ask for of models and what serves them: the API's requests, and the services its views call."""

from collections.abc import Mapping
from typing import Any

from control.core.api.forms import Choices
from control.data.files.selectors import file_get, files_list
from control.models.adapters.models import Adapter
from control.models.adapters.selectors import adapters_get, adapters_list
from control.models.adapters.serializers import AdapterInput
from control.models.adapters.services import adapter_create
from control.models.catalog.intake import base_model_submit
from control.models.catalog.models import BaseModel
from control.models.catalog.selectors import base_model_get, speculator_get
from control.models.catalog.serializers import BaseModelInput
from control.operations.console.asking import Ask
from control.operations.console.offers import checked, ids, models, ready
from control.serving.captures.models import Capture
from control.serving.captures.serializers import CaptureInput
from control.serving.captures.services import capture_set
from control.serving.deployments.models import Deployment
from control.serving.deployments.selectors import deployment_get
from control.serving.deployments.serializers import DeploymentInput, DeploymentUpdateInput
from control.serving.deployments.services import deployment_create, deployment_update
from control.tenants.accounts.models import Organization


def _create_deployment(organization: Organization, body: dict[str, Any]) -> Deployment:
    values = checked(DeploymentInput, body)
    speculator = values["speculator_id"] and speculator_get(organization, values["speculator_id"])
    return deployment_create(
        organization=organization,
        name=values["name"],
        base_model=base_model_get(organization, values["model"]),
        speculator=speculator,
        adapters=adapters_get(organization, values["adapters"]),
    )


def _serving(organization: Organization) -> Mapping[str, Choices]:
    return {"speculator_id": ready(organization), "adapters": ids(adapters_list(organization))}


CREATE_DEPLOYMENT = Ask(
    title="Create a deployment",
    request=DeploymentInput,
    run=_create_deployment,
    choices=lambda organization: {"model": models(organization), **_serving(organization)},
)


def _change_deployment(row: Deployment, body: dict[str, Any]) -> Deployment:
    values, deployment = checked(DeploymentUpdateInput, body), deployment_get(row.organization, row.pk)
    chosen = values["speculator_id"]
    adapters = adapters_get(row.organization, values["adapters"]) if "adapters" in values else None
    return deployment_update(
        deployment=deployment,
        speculator=None if chosen is None else speculator_get(row.organization, chosen),
        adapters=adapters,
    )


CHANGE_DEPLOYMENT = Ask(
    title="Change",
    request=DeploymentUpdateInput,
    run=_change_deployment,
    choices=_serving,
    initial=lambda row: {
        "speculator_id": row.speculator_id,
        "adapters": [adapter.pk for adapter in row.adapters.all()],
    },
)


def _register_model(organization: Organization, body: dict[str, Any]) -> BaseModel:
    values = checked(BaseModelInput, body)
    return base_model_submit(organization=organization, **values)


REGISTER_MODEL = Ask(
    title="Register a base model", request=BaseModelInput, run=_register_model, choices=lambda organization: {}
)


def _create_adapter(organization: Organization, body: dict[str, Any]) -> Adapter:
    values = checked(AdapterInput, body)
    return adapter_create(
        organization=organization,
        name=values["name"],
        base_model=base_model_get(organization, values["model"]),
        config_file=file_get(organization, values["config_file"], param="config_file"),
        weights_file=file_get(organization, values["weights_file"], param="weights_file"),
    )


CREATE_ADAPTER = Ask(
    title="Create an adapter",
    request=AdapterInput,
    run=_create_adapter,
    choices=lambda organization: {
        "model": models(organization),
        "config_file": ids(files_list(organization)),
        "weights_file": ids(files_list(organization)),
    },
)


def _set_capture(row: Deployment, body: dict[str, Any]) -> Capture:
    values = checked(CaptureInput, body)
    return capture_set(deployment=deployment_get(row.organization, row.pk), hours=values["hours"])


SET_CAPTURE = Ask(title="Capture", request=CaptureInput, run=_set_capture, choices=lambda organization: {})
