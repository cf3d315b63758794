"""Publishes speculators to all organizations, and withdraws them. Only operators call these services.

Publishing writes a new artifact, which has the configuration, the weights and, for a draft model, the tokenizer files.
Reports, plots, metrics and the provenance of the training are not copied. Neither the database row nor the storage keys
name the organization that owns the original. The deletion of the original does not affect the published speculator.
"""

import json
from pathlib import Path
from typing import Any

from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from control.core.api.errors import ApiError
from control.core.ids import base_speculator_id
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import staging_folder
from control.models.catalog.fitting import fit_check
from control.models.catalog.folder import UnusableModel
from control.models.catalog.models import BaseModel, BaseSpeculator, Speculator
from control.models.catalog.sources import model_folder
from workers.exports.artifact import Artifact
from workers.exports.errors import ExchangeError
from workers.exports.formats import import_speculator
from workers.exports.target import Target
from workers.kinds import OUTPUT_CHANGING_KINDS


def base_speculator_publish(*, speculator: Speculator, name: str, description: str = "") -> BaseSpeculator:
    """Publishes a copy of an organization's speculator as the next version under this name.

    Raises: ApiError: 400, speculators of this kind change answers, the model is not shared, or the artifact is damaged;
        409, the speculator is not ready, is an organization's use of a base speculator, or was trained for another
        revision, tokenizer or template of the model.
    """
    if speculator.base_speculator_id is not None:
        raise ApiError(409, f"Speculator {speculator.pk} is a base speculator already.", "already_published")
    fit_check(speculator, speculator.base_model)
    with staging_folder() as root:
        original = root / "original"
        original.mkdir()
        try:
            get_storage().get_folder(speculator.storage_prefix, original)
        except ObjectMissing as error:
            raise ApiError(409, f"Speculator {speculator.pk} has no files.", "speculator_not_ready") from error
        return _publish(
            original,
            base_model=speculator.base_model,
            name=name,
            description=description,
            texts=speculator.target_texts,
        )


def base_speculator_import(
    *, folder: Path, form: str | None, base_model: BaseModel, name: str, description: str = ""
) -> BaseSpeculator:
    """Publishes the speculator in a local folder as the next version under this name.

    Args: form: a format of `workers.exports`; None: an artifact that our training has written.
    Raises: ApiError: 400, as `base_speculator_publish`, or the folder is not in the format; 409, the artifact records
        another revision, tokenizer or template of the model.
    """
    texts = base_model.texts
    if form is None:
        trained = _provenance(folder)
        fit_check(_trained_for(base_model, trained), base_model)
        texts = {key: trained[key] for key in base_model.texts or {} if key in trained} or None
    return _publish(folder, form=form, base_model=base_model, name=name, description=description, texts=texts)


@transaction.atomic
def base_speculator_withdraw(*, base_speculator: BaseSpeculator) -> None:
    """Stops offering the speculator. Organizations that already use it keep it, and its files stay in storage."""
    BaseSpeculator.objects.filter(pk=base_speculator.pk, withdrawn_at=None).update(withdrawn_at=timezone.now())


def _publish(
    folder: Path,
    *,
    base_model: BaseModel,
    name: str,
    description: str,
    texts: dict[str, Any] | None,
    form: str | None = None,
) -> BaseSpeculator:
    if base_model.organization_id is not None:
        message = f"{base_model.name!r} belongs to one organization; a base speculator needs a shared model."
        raise ApiError(400, message, "model_not_shared", "model")
    identity = base_speculator_id()
    prefix = f"base_speculators/{identity}"
    with staging_folder() as out:
        provenance = {"target_revision": base_model.revision, **(texts or {})}
        kind = _write(folder, out, form=form, base_model=base_model, provenance=provenance)
        get_storage().put_folder(prefix, out)
    try:
        with transaction.atomic():
            BaseModel.objects.select_for_update().get(pk=base_model.pk)  # two calls must not choose the same version
            versions = BaseSpeculator.objects.filter(base_model=base_model, name=name)
            return BaseSpeculator.objects.create(
                id=identity,
                base_model=base_model,
                name=name,
                version=(versions.aggregate(last=Max("version"))["last"] or 0) + 1,
                kind=kind,
                description=description,
                target_revision=base_model.revision,
                target_texts=texts,
                storage_prefix=prefix,
            )
    except Exception:
        get_storage().delete_folder(prefix)
        raise


def _write(folder: Path, out: Path, *, form: str | None, base_model: BaseModel, provenance: dict[str, Any]) -> str:
    """Writes the artifact without reports and plots. Returns: the kind. Raises: ApiError: 400."""
    try:
        target = Target.read(model_folder(base_model), name=base_model.name)
        if form is not None:
            kind = import_speculator(folder, form, target, out, provenance=provenance)
        else:
            artifact = Artifact.read(folder)
            artifact.check(target)
            artifact.write(out, provenance)
            kind = artifact.kind
    except (ExchangeError, UnusableModel) as error:
        raise ApiError(400, error.message, error.code) from error
    if kind in OUTPUT_CHANGING_KINDS:
        message = f"A {kind} has an adapter that changes answers; a base speculator must not change them."
        raise ApiError(400, message, "output_change")
    return kind


def _provenance(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / "provenance.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _trained_for(base_model: BaseModel, trained: dict[str, Any]) -> Speculator:
    """Returns an unsaved speculator with the target that the artifact records."""
    revision = trained.get("target_revision", base_model.revision)
    ready = Speculator.Status.READY
    return Speculator(base_model=base_model, status=ready, target_revision=revision, target_texts=trained)
