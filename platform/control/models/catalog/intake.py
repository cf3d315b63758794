"""Registers the models of customers: checking ──> ready | refused.

A job checks each model, because the check reads every byte of it and computes the model's perplexity on a text.
"""

from django.db import IntegrityError, transaction
from django.db.models import ProtectedError

from control.core.api.errors import ApiError
from control.core.ids import base_model_id
from control.models.catalog.folder import ModelFolder
from control.models.catalog.models import BaseModel
from control.models.catalog.sources import is_allowed
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_submit
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.tenants.events.services import event_record
from control.tenants.row_security.scope import current_project

Status = BaseModel.Status


@audited("base_model.create")
def base_model_submit(*, organization: Organization, name: str, source: str) -> BaseModel:
    """Raises: ApiError: 400, the operators do not allow models from this source; 409, the name is taken."""
    if not is_allowed(source, organization_id=organization.pk):
        message = "source must be below a folder or S3 prefix that the operators of this service allow."
        raise ApiError(400, message, "source_not_allowed", "source")
    identity = base_model_id()
    with transaction.atomic():
        job_submit(organization=organization, kind=Job.Kind.MODEL_CHECK, params={"base_model_id": identity})
        try:
            with transaction.atomic():
                return BaseModel.objects.create(
                    id=identity, organization=organization, name=name, source=source, status=Status.CHECKING
                )
        except IntegrityError as error:
            raise ApiError(409, f"You have a base model named {name!r} already.", "name_taken", "name") from error


@audited("base_model.delete")
def base_model_delete(*, base_model: BaseModel, organization: Organization) -> None:
    """Raises: ApiError: 403, the model is shared by all organizations or projects; 409, other objects use it."""
    is_shared_by_projects = current_project() not in (None, base_model.project_id)
    if base_model.organization_id != organization.pk or is_shared_by_projects:
        whom = "projects" if base_model.organization_id == organization.pk else "organizations"
        message = f"{base_model.name!r} is shared by all {whom}; you cannot delete it."
        raise ApiError(403, message, "base_model_shared", "model_id")
    try:
        with transaction.atomic():
            base_model.delete()
    except ProtectedError as error:
        message = f"{base_model.name!r} is in use: batches, speculators or deployments name it."
        raise ApiError(409, message, "base_model_in_use", "model_id") from error


def base_model_accept(*, base_model: BaseModel, folder: ModelFolder, perplexity: float) -> None:
    _finish_check(base_model, Status.READY, perplexity=perplexity, **folder.columns())


def base_model_refuse(*, base_model: BaseModel, code: str, message: str) -> None:
    """Args: message: shown to the customer, so it must not contain a local path other than the requested source."""
    _finish_check(base_model, Status.REFUSED, error={"code": code, "message": message})


@transaction.atomic
def _finish_check(base_model: BaseModel, to: BaseModel.Status, **values: object) -> None:
    """Ends the check. A second call, by a worker whose lease expired, changes nothing."""
    if BaseModel.objects.filter(pk=base_model.pk, status=Status.CHECKING).update(status=to, **values):
        assert base_model.organization_id is not None, "operators register shared models, which no job checks"
        event_record(
            organization_id=base_model.organization_id,
            project_id=base_model.project_id,
            type=f"base_model.{to.value}",
            object_id=base_model.pk,
        )
