"""Creates and deletes adapters."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from django.db import IntegrityError, transaction

from control.core.api.errors import ApiError
from control.core.ids import adapter_id
from control.core.settings.config import get_config
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import staging_folder
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.models.adapters.lora import MAX_CONFIG_BYTES, UnusableAdapter, inspect_adapter
from control.models.adapters.models import Adapter
from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work
from control.tenants.quotas.models import StoredPart
from control.tenants.quotas.storage import reservation_commit, storage_count, storage_reserve
from workers.model_folders import MAX_JSON_BYTES

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@audited("adapter.create", records_itself=True)
def adapter_create(
    *, organization: Organization, name: str, base_model: BaseModel, config_file: File, weights_file: File
) -> Adapter:
    """Checks the two files and copies them; the customer may delete the originals afterwards.

    Raises: ApiError: 400, the files are not an adapter of this model; 403, the copies would exceed the storage limit;
        404, a file is deleted; 409, the name is taken; 413, the weights are too large; 429, too many files are being
        read or written.
    """
    limit = get_config().max_weights_bytes
    if weights_file.size_bytes > limit:
        message = f"weights_file must have at most {limit:,} bytes, got {weights_file.size_bytes:,}"
        raise ApiError(413, message, "file_too_large", "weights_file")
    with file_work.taken(organization.pk), staging_folder() as folder:
        _copy(weights_file, folder / WEIGHTS, "weights_file")
        (folder / CONFIG).write_bytes(_read(config_file))
        return adapter_store(
            organization=organization,
            name=name,
            base_model=base_model,
            folder=folder,
            on_saved=partial(audit_record, "adapter.create"),
        )


def adapter_store(
    *,
    organization: Organization,
    name: str,
    base_model: BaseModel,
    folder: Path,
    on_saved: Callable[[Adapter], object],
    made_from: str = "",
) -> Adapter:
    """Checks the two files in `folder` and stores them as an adapter.

    Only the checked keys of the configuration are stored: adapter_config.json in `folder` is overwritten with them.

    Args:
        on_saved: called in the transaction that adds the adapter's row.
        made_from: see `Adapter.made_from`.
    Raises: ApiError: 400, the files are not an adapter of this model; 403, they would exceed the storage limit; 409,
        the name is taken.
    """
    weights, config = folder / WEIGHTS, folder / CONFIG
    try:
        with config.open("rb") as file:
            lora = inspect_adapter(file.read(MAX_CONFIG_BYTES + 1), weights, model=_config_of(base_model))
    except UnusableAdapter as error:
        raise ApiError(400, f"{error.param}: {error.message}", "adapter_unusable", error.param) from error
    config.write_text(json.dumps(lora.config))
    identity = adapter_id()
    adapter = Adapter(
        id=identity,
        organization=organization,
        base_model=base_model,
        name=name,
        rank=lora.rank,
        target_modules=lora.target_modules,
        size_bytes=weights.stat().st_size,
        storage_prefix=f"{organization.pk}/adapters/{identity}",
        made_from=made_from,
    )
    with delete_stored_on_error():
        prefix = adapter.storage_prefix
        storage_reserve(organization.pk, StoredPart.ADAPTERS, key=prefix, num_bytes=adapter.size_bytes)
        get_storage().put_folder(prefix, folder)
        _save(adapter, on_saved)
    return adapter


def _save(adapter: Adapter, on_saved: Callable[[Adapter], object]) -> None:
    try:
        with change():
            adapter.save(force_insert=True)
            reservation_commit(adapter.storage_prefix)
            on_saved(adapter)
    except IntegrityError as error:
        message = f"You have an adapter named {adapter.name!r} already."
        raise ApiError(409, message, "name_taken", "name") from error


@audited("adapter.delete")
@transaction.atomic
def adapter_delete(*, adapter: Adapter) -> None:
    """Raises: ApiError: 409, a deployment serves the adapter."""
    deployment_name = adapter.deployments.filter(deleted_at=None).values_list("name", flat=True).first()
    if deployment_name is not None:
        message = f"The deployment {deployment_name!r} serves this adapter: remove it from the deployment first."
        raise ApiError(409, message, "adapter_in_use", "adapter_id")
    transaction.on_commit(partial(_delete_bytes, adapter.storage_prefix))
    if Adapter.objects.filter(pk=adapter.pk).delete()[0]:
        storage_count(adapter.organization_id, StoredPart.ADAPTERS, -adapter.size_bytes)


def _delete_bytes(prefix: str) -> None:
    for name in (CONFIG, WEIGHTS):
        get_storage().delete(f"{prefix}/{name}")


def _copy(file: File, path: Path, param: str) -> None:
    try:
        with get_storage().open(file.storage_key) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    except ObjectMissing as error:
        raise ApiError(404, f"The file {file.pk} has been deleted.", "file_not_found", param) from error


def _read(file: File) -> bytes:
    """Reads at most one byte more than the limit, which is enough for `inspect_adapter` to refuse a larger file."""
    try:
        with get_storage().open(file.storage_key) as source:
            return source.read(MAX_CONFIG_BYTES + 1)
    except ObjectMissing as error:
        raise ApiError(404, f"The file {file.pk} has been deleted.", "file_not_found", "config_file") from error


def _config_of(base_model: BaseModel) -> dict[str, Any] | None:
    """Returns the model's config.json; None if it is not on this machine or is no longer a valid configuration."""
    path = Path(base_model.path) / "config.json"
    if not base_model.path or not path.is_file() or path.stat().st_size > MAX_JSON_BYTES:
        return None
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
