"""Registers base models, and creates speculators and changes their state."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction

from control.core.api.errors import ApiError
from control.models.catalog.folder import UnusableModel, inspect_folder
from control.models.catalog.models import BaseModel, Speculator
from control.tenants.accounts.models import Organization
from control.tenants.accounts.versions import next_version
from control.tenants.events.services import event_record

Status = Speculator.Status


def base_model_register(*, name: str, path: Path | str, organization: Organization | None = None) -> BaseModel:
    """Checks the folder, reading all weights once, and registers it as a target model under this name.

    If the same weights are registered again, from the same folder or another one, the existing row gets the new path.
    Args:
        organization: the only organization that may use the model; None: every organization may.
    Raises: ApiError: 400, the folder is refused; 409, the name belongs to other weights, for which there may be
        speculators.
    """
    try:
        folder = inspect_folder(Path(path).resolve())
    except UnusableModel as error:
        raise ApiError(400, error.message, error.code, "path") from error
    try:
        with transaction.atomic():
            return BaseModel.objects.create(name=name, organization=organization, **folder.columns())
    except IntegrityError:
        existing = BaseModel.objects.get(name=name, organization=organization)
    if existing.revision != folder.revision:
        message = f"{name!r} is already the name of other weights (revision {existing.revision[:12]})"
        raise ApiError(409, message, "name_taken", "name")
    BaseModel.objects.filter(pk=existing.pk).update(path=str(folder.path), sizes=folder.sizes, texts=folder.texts)
    existing.refresh_from_db()
    return existing


@transaction.atomic
def speculator_create(*, organization: Organization, base_model: BaseModel, name: str, kind: str) -> Speculator:
    """Creates the next version under this name, bound to the base model's current weights and tokenizer."""
    return Speculator.objects.create(
        organization=organization,
        base_model=base_model,
        name=name,
        version=speculator_next_version(organization, name),
        kind=kind,
        target_revision=base_model.revision,
        target_texts=base_model.texts,
    )


def speculator_next_version(organization: Organization, name: str) -> int:
    """Effects: as `next_version`."""
    return next_version(organization, Speculator.objects.filter(organization=organization, name=name))


def speculator_ready(*, speculator: Speculator, storage_prefix: str, training: Mapping[str, Any]) -> Speculator:
    """Marks the speculator as ready once its artifact is in storage. A second call changes nothing.

    Args: training: the training job's result. Its `method` becomes the speculator's kind, which was `auto` if the
        training chose the kind.
    """
    return _finish_training(
        speculator,
        Status.READY,
        storage_prefix=storage_prefix,
        training={**speculator.training, **training},
        kind=training.get("method", speculator.kind),
    )


def speculator_fail(*, speculator: Speculator) -> Speculator:
    return _finish_training(speculator, Status.FAILED)


def _finish_training(speculator: Speculator, to: Speculator.Status, **values: Any) -> Speculator:
    with transaction.atomic():
        if Speculator.objects.filter(pk=speculator.pk, status=Status.TRAINING).update(status=to, **values):
            event_record(
                organization_id=speculator.organization_id,
                project_id=speculator.project_id,
                type=f"speculator.{to.value}",
                object_id=speculator.pk,
            )
    speculator.refresh_from_db()
    return speculator


def speculator_report(*, speculator: Speculator, report: Mapping[str, Any], plot_key: str) -> Speculator:
    """Stores the report of the latest evaluation. `plot_key` is empty if there is no plot."""
    Speculator.objects.filter(pk=speculator.pk).update(report=dict(report), plot_key=plot_key)
    speculator.refresh_from_db()
    return speculator
