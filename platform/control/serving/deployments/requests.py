"""Carries out requests for deployments that come from the API or the console."""

from dataclasses import replace

from django.db import transaction

from control.core.api.errors import ApiError
from control.core.api.forms import Choices, ConsoleForm, row_choices
from control.models.adapters.selectors import adapters_get, adapters_list
from control.models.base_speculators.choices import ready_speculators
from control.models.base_speculators.services import speculator_preview, speculator_resolve
from control.models.catalog.choices import base_models
from control.models.catalog.models import Speculator
from control.models.catalog.selectors import base_model_get
from control.models.engines.planning import engine_plan
from control.models.engines.schemas import EnginePlan
from control.queue.devices.selectors import hardware_check
from control.serving.acceptance.options import alarm_of
from control.serving.deployments.models import Deployment
from control.serving.deployments.scaling import scaling_of
from control.serving.deployments.schemas import DeploymentOptions, DeploymentUpdateInput
from control.serving.deployments.selectors import deployment_get
from control.serving.deployments.services import (
    deployment_alarm_set,
    deployment_create,
    deployment_memory_set,
    deployment_scale,
    deployment_scaling_set,
    deployment_update,
    deployment_workload,
)
from control.tenants.accounts.models import Organization


def plan_from(organization: Organization, body: DeploymentOptions) -> EnginePlan:
    """Plans the memory of a deployment's engine without creating the deployment.

    Raises: ApiError: 404, no such model, speculator or adapter; 409, one of them is not usable; 400, the engine does
        not fit, or no device has the name `hardware`.
    """
    named = body.speculator_id
    workload = deployment_workload(
        base_model_get(organization, body.model),
        None if named is None else speculator_preview(organization, named),
        adapters_get(organization, body.adapters),
        hardware_check(body.hardware),
    )
    return engine_plan(body.engine, workload)


def create_from(organization: Organization, body: DeploymentOptions) -> Deployment:
    """Raises: ApiError: 404, no such model, speculator or adapter; 400, no device has the name `hardware`; otherwise as
    `deployment_create`."""
    return deployment_create(
        organization=organization,
        name=body.name,
        base_model=base_model_get(organization, body.model),
        speculator=_speculator(organization, body.speculator_id),
        adapters=adapters_get(organization, body.adapters),
        remember_answers=body.remember_answers,
        engine=body.engine,
        num_replicas=body.replicas,
        scaling=body.scaling,
        acceptance_alarm=body.acceptance_alarm,
        hardware=hardware_check(body.hardware),
    )


def update_from(deployment: Deployment, body: DeploymentUpdateInput) -> Deployment:
    """Raises: ApiError: 400, `body` is empty; 404, no such speculator or adapter; otherwise as `deployment_update`."""
    changed = body.model_fields_set - {"allow_output_change"}
    if not changed:
        message = "speculator_id: give speculator_id, adapters, remember_answers, replicas, scaling or acceptance_alarm"
        raise ApiError(400, message, "missing_required_parameter", "speculator_id")
    organization, speculator, adapters = deployment.organization, deployment.speculator, None
    if changed <= {"remember_answers", "replicas", "scaling", "acceptance_alarm"}:  # the processes continue to serve
        return _update_in_place(deployment, body)
    if "speculator_id" in body.model_fields_set:
        speculator = _speculator(organization, body.speculator_id)
    if "adapters" in body.model_fields_set:
        adapters = adapters_get(organization, body.adapters)
    return deployment_update(
        deployment=deployment,
        speculator=speculator,
        adapters=adapters,
        allow_output_change=body.allow_output_change,
        remember_answers=body.remember_answers if "remember_answers" in changed else None,
        num_replicas=body.replicas if "replicas" in changed else None,
        scaling=body.scaling if "scaling" in changed else None,
        acceptance_alarm=body.acceptance_alarm if "acceptance_alarm" in changed else None,
    )


@transaction.atomic
def _update_in_place(deployment: Deployment, body: DeploymentUpdateInput) -> Deployment:
    if "remember_answers" in body.model_fields_set:
        deployment_memory_set(deployment=deployment, remember_answers=body.remember_answers)
    if "replicas" in body.model_fields_set:
        deployment_scale(deployment=deployment, num_replicas=body.replicas)
    if "scaling" in body.model_fields_set:
        deployment_scaling_set(deployment=deployment, scaling=body.scaling)
    if "acceptance_alarm" in body.model_fields_set:
        deployment_alarm_set(deployment=deployment, acceptance_alarm=body.acceptance_alarm)
    return deployment


def _speculator(organization: Organization, speculator_id: str | None) -> Speculator | None:
    return None if speculator_id is None else speculator_resolve(organization, speculator_id)


def _served_choices(organization: Organization) -> dict[str, Choices]:
    return {"speculator_id": ready_speculators(organization), "adapters": row_choices(adapters_list(organization))}


CREATE_DEPLOYMENT = ConsoleForm(
    title="Create a deployment",
    request=DeploymentOptions,
    run=create_from,
    choices=lambda organization: {"model": base_models(organization), **_served_choices(organization)},
)
DEPLOY_SPECULATOR = replace(
    CREATE_DEPLOYMENT,
    title="Deploy",
    run=lambda row, body: create_from(row.organization, body),
    initial=lambda row: {"name": row.name, "model": row.base_model.name, "speculator_id": row.pk},
)
CHANGE_DEPLOYMENT = ConsoleForm(
    title="Change",
    request=DeploymentUpdateInput,
    run=lambda row, body: update_from(deployment_get(row.organization, row.pk), body),
    choices=_served_choices,
    initial=lambda row: {
        "speculator_id": row.speculator_id,
        "adapters": [adapter.pk for adapter in row.adapters.all()],
        "remember_answers": row.remember_answers,
        "replicas": row.num_replicas,
        "scaling": scaling_of(row).model_dump(),
        "acceptance_alarm": alarm_of(row).model_dump(),
    },
)
