"""Services that write the desired state of deployments. `observations` writes the observed state."""

import re
from collections.abc import Sequence
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F
from django.utils import timezone

from control.billing.usage.selectors import require_price
from control.billing.usage.services import usage_attribute
from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.models.adapters.models import Adapter
from control.models.catalog.drafters import changes_output
from control.models.catalog.fitting import fit_check
from control.models.catalog.models import BaseModel, Speculator
from control.models.engines.drafting import drafting_check
from control.models.engines.planning import Purpose, Workload, engine_plan
from control.models.engines.schemas import EngineOptions
from control.serving.acceptance.models import AcceptanceWatch
from control.serving.acceptance.options import DEFAULT_ALARM, AlarmOptions, alarm_of
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.quota import deployment_quota_check, device_quota_check
from control.serving.deployments.scaling import NO_SCALING, ScalingOptions
from control.serving.deployments.states import RUNNING_STATES, State, transition
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.events.services import event_record

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@audited("deployment.create")
@transaction.atomic
def deployment_create(
    *,
    organization: Organization,
    name: str,
    base_model: BaseModel,
    speculator: Speculator | None = None,
    adapters: Sequence[Adapter] = (),
    remember_answers: bool = True,
    engine: EngineOptions | None = None,
    num_replicas: int = 1,
    scaling: ScalingOptions | None = None,
    acceptance_alarm: AlarmOptions = DEFAULT_ALARM,
    hardware: str = "",
) -> Deployment:
    """Creates a deployment that answers requests for the model `name`. The supervisor starts its process.

    Raises: ApiError: 400: the name or the engine's options are invalid, or the model does not fit; 403: the model has
        no price; 409: the name is taken, the speculator is not ready or was trained for another revision of the base
        model, or an adapter belongs to another model; 429: the organization has reached its limit of deployments or
        devices.
    """
    if not _NAME.fullmatch(name):
        message = (
            "name must have 1 to 64 letters, digits, '.', '_' or '-', the first one a letter or digit, "
            f"got {name[:80]!r}"
        )
        raise ApiError(400, message, "invalid_value", "name")
    require_price(base_model_id=base_model.pk, name=base_model.name)
    scaling = scaling or NO_SCALING
    stored_scaling, num_replicas = _checked(scaling), scaling.within(num_replicas)
    deployment_quota_check(organization.pk)
    device_quota_check(organization.pk, num_more=num_replicas)
    if speculator is not None:
        _lock(speculator)
    engine_plan(engine or EngineOptions(), deployment_workload(base_model, speculator, adapters, hardware))
    try:
        with transaction.atomic():  # a savepoint, so that a failed insert does not break the caller's transaction
            deployment = Deployment.objects.create(
                organization=organization,
                name=name,
                base_model=base_model,
                speculator=speculator,
                remember_answers=remember_answers,
                engine=None if engine is None else engine.model_dump(),
                num_replicas=num_replicas,
                scaling=stored_scaling,
                acceptance_alarm=_stored_alarm(acceptance_alarm),
                hardware=hardware,
            )
    except IntegrityError as error:
        raise ApiError(409, f"There is already a deployment named {name!r}.", "name_taken", "name") from error
    deployment.adapters.set(adapters)
    usage_attribute(job_id=deployment.pk, organization_id=organization.pk)
    event_record(
        organization_id=organization.pk,
        project_id=deployment.project_id,
        type="deployment.provisioning",
        object_id=deployment.pk,
    )
    return deployment


def deployment_workload(
    base_model: BaseModel, speculator: Speculator | None, adapters: Sequence[Adapter], hardware: str = ""
) -> Workload:
    """Returns the workload for which `engine_plan` computes the memory.

    Raises: ApiError: 409, the speculator or an adapter does not belong to the model, or is not ready.
    """
    if speculator is not None:
        fit_check(speculator, base_model)
    _check_adapters(adapters, base_model)
    return Workload(
        purpose=Purpose.ENDPOINT,
        base_model=base_model,
        speculator=speculator,
        adapters=adapters,
        hardware=hardware,
    )


def _lock(speculator: Speculator) -> None:
    """Reads the row again under a lock, which `speculator_delete` takes too."""
    speculator.refresh_from_db(from_queryset=Speculator.objects.select_for_update())


def _check_adapters(adapters: Sequence[Adapter], base_model: BaseModel) -> None:
    for adapter in adapters:
        if adapter.base_model_id != base_model.pk:
            message = f"Adapter {adapter.pk} belongs to the model {adapter.base_model.name!r}, not {base_model.name!r}."
            raise ApiError(409, message, "adapter_mismatch", "adapters")


def _check_drafting(deployment: Deployment, speculator: Speculator | None) -> None:
    options = EngineOptions.model_validate(deployment.engine or {})
    drafting_check(options, base_model=deployment.base_model, has_speculator=speculator is not None)


def output_change_refuse(deployment: Deployment, speculator: Speculator | None) -> None:
    """Refuses to replace the deployment's speculator if answers would change. Raises: ApiError: 409."""
    if changes_output(deployment.speculator, speculator):
        message = (
            "With this speculator the answers change, because one of the two speculators contains an adapter that "
            "every answer uses. Set allow_output_change to true to accept that."
        )
        raise ApiError(409, message, "output_change", "speculator_id")


@audited("deployment.update")
@transaction.atomic
def deployment_update(
    *,
    deployment: Deployment,
    speculator: Speculator | None,
    adapters: Sequence[Adapter] | None = None,
    allow_output_change: bool = False,
    remember_answers: bool | None = None,
    num_replicas: int | None = None,
    scaling: ScalingOptions | None = None,
    acceptance_alarm: AlarmOptions | None = None,
) -> Deployment:
    """Changes the speculator and the adapters. The new generation makes a running endpoint drain and restart.

    Args:
        speculator: None: serve without a speculator.
        adapters: the complete new list; None: leave the adapters as they are.
        allow_output_change: accept that answers change with the new speculator.
        remember_answers, num_replicas, scaling, acceptance_alarm: None leaves the value unchanged.
    Raises: ApiError: 400, the engine's options contradict the speculator; 409, as `deployment_create`, except for the
        name, or answers would change.
    """
    _check_drafting(deployment, speculator)
    if not allow_output_change:
        output_change_refuse(deployment, speculator)
    if remember_answers is not None:
        deployment_memory_set(deployment=deployment, remember_answers=remember_answers)
    if num_replicas is not None:
        deployment_scale(deployment=deployment, num_replicas=num_replicas)
    if scaling is not None:
        deployment_scaling_set(deployment=deployment, scaling=scaling)
    if acceptance_alarm is not None:
        deployment_alarm_set(deployment=deployment, acceptance_alarm=acceptance_alarm)
    if adapters is not None:
        _check_adapters(adapters, deployment.base_model)
        deployment.adapters.set(adapters)
    if speculator is not None:
        _lock(speculator)
        fit_check(speculator, deployment.base_model)
    Deployment.objects.filter(pk=deployment.pk).update(speculator=speculator, generation=F("generation") + 1)
    _forget_crashes(deployment)
    deployment.refresh_from_db()
    return deployment


def _forget_crashes(deployment: Deployment) -> None:
    replicas = Replica.objects.filter(deployment=deployment)
    replicas.filter(pid=None).update(state=Replica.State.PROVISIONING)
    replicas.update(crashes=[], not_before=None, error=None)


@audited("deployment.update")
@transaction.atomic
def deployment_scale(*, deployment: Deployment, num_replicas: int) -> Deployment:
    """Changes the number of replicas. Surplus replicas finish their requests and end; the others continue to serve.

    Raises: ApiError: 429, the organization's endpoints would occupy more devices than the limit allows.
    """
    locked = Deployment.objects.select_for_update().get(pk=deployment.pk)
    if num_replicas > locked.num_replicas and locked.state in RUNNING_STATES:
        device_quota_check(deployment.organization_id, num_more=num_replicas - locked.num_replicas)
        transition(deployment, State.PROVISIONING)
    Deployment.objects.filter(pk=deployment.pk).update(num_replicas=num_replicas)
    deployment.refresh_from_db()
    return deployment


@audited("deployment.update")
@transaction.atomic
def deployment_scaling_set(*, deployment: Deployment, scaling: ScalingOptions) -> Deployment:
    """Changes the scaling options. No process is restarted.

    Raises: ApiError: 400, the limits contradict each other; 409, engines cannot sleep on the installation's devices;
        429, as `deployment_scale`.
    """
    Deployment.objects.filter(pk=deployment.pk).update(scaling=_checked(scaling))
    deployment.refresh_from_db()
    if (num_replicas := scaling.within(deployment.num_replicas)) != deployment.num_replicas:
        deployment_scale(deployment=deployment, num_replicas=num_replicas)
    return deployment


def _checked(scaling: ScalingOptions) -> dict[str, Any] | None:
    """Returns the value to store in the row; None for the defaults. Raises: ApiError: 400, 409."""
    if scaling.max_replicas is not None and scaling.min_replicas > scaling.max_replicas:
        message = f"min_replicas must be at most max_replicas ({scaling.max_replicas}), got {scaling.min_replicas}."
        raise ApiError(400, message, "invalid_value", "scaling.min_replicas")
    if scaling.scale_to_zero_seconds is not None and get_config().device.startswith("cuda"):
        message = "Engines on CUDA devices cannot sleep yet, so this deployment cannot scale to zero."
        raise ApiError(409, message, "sleep_not_supported", "scaling.scale_to_zero_seconds")
    return None if scaling == NO_SCALING else scaling.model_dump()


@audited("deployment.update")
@transaction.atomic
def deployment_memory_set(*, deployment: Deployment, remember_answers: bool) -> Deployment:
    """Sets whether the engine drafts copies of past answers. The gateway tells the engine with each request, so the
    endpoint is not restarted.
    """
    Deployment.objects.filter(pk=deployment.pk).update(remember_answers=remember_answers)
    deployment.refresh_from_db()
    return deployment


@audited("deployment.update")
@transaction.atomic
def deployment_alarm_set(*, deployment: Deployment, acceptance_alarm: AlarmOptions) -> Deployment:
    """Sets the options of the acceptance alarm. Effects: if they change, the next minute begins another reference."""
    locked = Deployment.objects.select_for_update().get(pk=deployment.pk)
    if acceptance_alarm != alarm_of(locked):
        Deployment.objects.filter(pk=locked.pk).update(acceptance_alarm=_stored_alarm(acceptance_alarm))
        AcceptanceWatch.objects.filter(deployment=locked).delete()
    deployment.refresh_from_db()
    return deployment


def _stored_alarm(options: AlarmOptions) -> dict[str, Any] | None:
    return None if options == DEFAULT_ALARM else options.model_dump()


@audited("deployment.start")
@transaction.atomic
def deployment_start(*, deployment: Deployment) -> Deployment:
    """Starts a deployment that is stopped or failed and forgets its crashes. No effect if it is running.

    Raises: ApiError: 403, the model has no price; 404, the deployment is deleted; 429, the organization's endpoints
        would occupy more devices than the limit allows.
    """
    _refuse_deleted(deployment)
    if deployment.desired_state == Deployment.Desired.RUNNING and deployment.state in RUNNING_STATES:
        return deployment
    require_price(base_model_id=deployment.base_model_id, name=deployment.base_model.name)
    device_quota_check(deployment.organization_id, num_more=deployment.num_replicas, starting=deployment.pk)
    transition(
        deployment,
        State.PROVISIONING,
        desired_state=Deployment.Desired.RUNNING,
        generation=F("generation") + 1,
        error=None,
        healthy_at=None,
    )
    _forget_crashes(deployment)
    return deployment


@audited("deployment.stop")
@transaction.atomic
def deployment_stop(*, deployment: Deployment) -> Deployment:
    """Takes the deployment out of the gateway's routing at once. Its processes drain and stop. No effect if stopped."""
    transition(deployment, State.STOPPING, desired_state=Deployment.Desired.STOPPED, generation=F("generation") + 1)
    return deployment


@audited("deployment.delete")
@transaction.atomic
def deployment_delete(*, deployment: Deployment) -> Deployment:
    """Deletes a deployment. Its name is free at once; its processes drain and stop.

    The row stays, because pipelines refer to it.
    """
    deployment_stop(deployment=deployment)
    deployment.samples.all().delete()
    Deployment.objects.filter(pk=deployment.pk, deleted_at=None).update(deleted_at=timezone.now())
    deployment.refresh_from_db()
    return deployment


def _refuse_deleted(deployment: Deployment) -> None:
    if deployment.deleted_at is not None:
        raise ApiError(404, f"No such deployment: {deployment.id!r}.", "deployment_not_found", "deployment_id")


@transaction.atomic
def canary_create(*, deployment: Deployment, speculator: Speculator) -> Deployment:
    """Creates a hidden deployment with another speculator. `canary_share` sets its share of the requests.

    Raises: ApiError: 400, 409 or 429, as `deployment_update` and `deployment_create`; IntegrityError: the deployment
        already has a canary.
    """
    device_quota_check(deployment.organization_id)
    _check_drafting(deployment, speculator)
    _lock(speculator)
    fit_check(speculator, deployment.base_model)
    canary = Deployment.objects.create(
        organization=deployment.organization,
        project_id=deployment.project_id,
        name=f"canary-{deployment.pk}",
        base_model=deployment.base_model,
        speculator=speculator,
        engine=deployment.engine,
        hardware=deployment.hardware,
        canary_of=deployment,
    )
    canary.adapters.set(deployment.adapters.all())
    usage_attribute(job_id=canary.pk, organization_id=canary.organization_id)
    return canary


def canary_share(*, canary: Deployment, percent: int) -> None:
    Deployment.objects.filter(pk=canary.pk).update(canary_percent=percent)
