"""Exports speculators to files, imports them from files, and deletes them.

Files are converted within the request, on this machine's disk. Nothing is computed, so the conversion takes about as
long as copying the files. `SLIPSTREAM_MAX_WEIGHTS_BYTES` limits their size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from django.db import transaction

from control.core.api.errors import ApiError
from control.core.ids import speculator_id
from control.core.settings.config import get_config
from control.core.storage.backends import ObjectMissing, get_storage
from control.core.storage.staging import measure, staging_folder
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.services import file_add, file_store
from control.models.catalog.models import BaseModel, Speculator
from control.models.catalog.services import speculator_create, speculator_ready
from control.queue.jobs.models import Job
from control.serving.deployments.models import Deployment
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.tenants.quotas.file_work import file_work
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.state import ACTIVE
from workers.exports.archive import pack, unpack
from workers.exports.errors import ExchangeError
from workers.exports.formats import export_speculator, import_speculator
from workers.exports.target import Target

Status = Speculator.Status

_MAX_GROWTH, _FREE_BYTES = 2, 64 << 20  # an archive may unpack to _MAX_GROWTH times its size plus _FREE_BYTES
_ENDED_JOBS = (Job.Status.SUCCEEDED, Job.Status.FAILED, Job.Status.CANCELLED)
_ENDED_ROLLOUTS = (Rollout.Status.PROMOTED, Rollout.Status.ROLLED_BACK)
_ID_PARAMS = ("speculator_id", "initial_speculator_id")  # parameters of jobs that hold a speculator's id


@audited("speculator.export", records_itself=True)
def speculator_export(*, speculator: Speculator, form: str) -> File:
    """Creates a zip archive of the speculator in the format of another engine.

    Raises: ApiError: 400, the format cannot represent this speculator; 409, the speculator or its model is not ready,
        or the model has changed since the training; 403, the organization's files would exceed their quota; 413, the
        speculator is too large; 429, too many files are being read or written.
    """
    check_exportable(speculator)
    with conversion_folders(speculator.organization_id, "native", "exported") as (native, exported):
        fetch_artifact(speculator, native)
        with _as_bad_request("format"):
            export_speculator(native, form, target_of(speculator.base_model), exported)
        return store_archive(exported, speculator, suffix=form, action="speculator.export")


def check_exportable(speculator: Speculator) -> None:
    """Raises: ApiError: 409, the speculator is not ready, is a base speculator, or fits other weights of its model;
    413, it is too large."""
    if speculator.status != Status.READY:
        raise ApiError(409, f"Speculator {speculator.pk} is {speculator.status}.", "speculator_not_ready")
    if speculator.base_speculator_id is not None:  # its draft vocabulary comes from another organization's answers
        message = f"Speculator {speculator.pk} is a base speculator, which cannot be exported."
        raise ApiError(409, message, "speculator_not_exportable")
    if speculator.target_revision != speculator.base_model.revision:
        message = f"Speculator {speculator.pk} was trained for other weights of {speculator.base_model.name!r}."
        raise ApiError(409, message, "speculator_mismatch")
    _check_size(sum(get_storage().sizes(speculator.storage_prefix).values()), "speculator_id")


def fetch_artifact(speculator: Speculator, folder: Path) -> None:
    """Copies the speculator's files into an empty folder. Raises: ApiError: 409, there are none."""
    try:
        get_storage().get_folder(speculator.storage_prefix, folder)
    except ObjectMissing as error:
        raise ApiError(409, f"Speculator {speculator.pk} has no files.", "speculator_not_ready") from error


def store_archive(folder: Path, speculator: Speculator, *, suffix: str, action: str) -> File:
    """Packs the folder into a zip archive, and stores it as a file of the organization.

    suffix: of the file's name.
    action: the type of the audit event.
    Raises: ApiError: 403, the organization's files would exceed their quota.
    """
    archive = folder.with_suffix(".zip")
    pack(folder, archive)
    with delete_stored_on_error():
        file = file_store(
            organization=speculator.organization,
            filename=f"{speculator.name}-v{speculator.version}-{suffix}.zip",
            purpose=File.Purpose.FINE_TUNE_RESULTS,
            staged=measure(archive),
            made_from=speculator.pk,
        )
        with change():
            file_add(file=file)
            audit_record(action, speculator)
    return file


@audited("speculator.import", records_itself=True)
def speculator_import(
    *, organization: Organization, file: File, form: str, base_model: BaseModel, name: str
) -> Speculator:
    """Creates the next version under this name from a zip archive in the format of another engine.

    The service does not check whether the speculator was trained for these weights: a wrong speculator makes answers
    slower but does not change them.
    Raises: ApiError: 400, the content of the archive cannot be served with this model; 404, the file is deleted; 413,
        the archive is too large; 429, too many files are being read or written.
    """
    _check_size(file.size_bytes, "file_id")
    with conversion_folders(organization.pk, "foreign", "native") as (foreign, native):
        archive = foreign.with_suffix(".zip")
        try:
            get_storage().get_file(file.storage_key, archive)
        except ObjectMissing as error:
            raise ApiError(404, f"The file {file.pk} has been deleted.", "file_not_found", "file_id") from error
        with _as_bad_request("file_id"):
            # Weights hardly compress: an archive that grows to many times its size was made to fill the disk.
            limit_bytes = min(get_config().max_weights_bytes, _FREE_BYTES + _MAX_GROWTH * file.size_bytes)
            unpack(archive, foreign, limit_bytes=limit_bytes)
            provenance = {"archive_sha256": file.sha256, "target_revision": base_model.revision}
            provenance |= base_model.texts or {}
            kind = import_speculator(foreign, form, target_of(base_model), native, provenance=provenance)
        prefix = f"{organization.pk}/speculators/{speculator_id()}"
        get_storage().put_folder(prefix, native)
    try:
        with change():
            speculator = speculator_create(organization=organization, base_model=base_model, name=name, kind=kind)
            audit_record("speculator.import", speculator)
            return speculator_ready(
                speculator=speculator,
                storage_prefix=prefix,
                training={"method": kind, "imported_from": form, "archive_sha256": file.sha256},
            )
    except Exception:
        get_storage().delete_folder(prefix)
        raise


@audited("speculator.delete")
@transaction.atomic
def speculator_delete(*, speculator: Speculator) -> None:
    """Hides the speculator from the API, and deletes its files after the commit.

    The row stays, because pipelines and evaluations refer to it.

    Raises: ApiError: 409, a deployment, a job, a pipeline or a rollout uses the speculator.
    """
    locked = Speculator.objects.select_for_update().get(pk=speculator.pk)  # `deployment_create` takes the same lock
    if deployment := Deployment.objects.filter(speculator=locked, deleted_at=None).first():
        message = (
            f"Deployment {deployment.name!r} serves with speculator {locked.pk}: "
            "give the deployment another speculator first."
        )
        raise ApiError(409, message, "speculator_in_use", "speculator_id")
    if locked.status == Status.TRAINING or _is_in_use(locked):
        message = f"A job, a pipeline or a rollout uses speculator {locked.pk}: cancel it, or wait until it ends."
        raise ApiError(409, message, "speculator_in_use", "speculator_id")
    Speculator.objects.filter(pk=locked.pk).update(status=Status.DELETED)
    if locked.storage_prefix and locked.base_speculator_id is None:
        transaction.on_commit(partial(get_storage().delete_folder, locked.storage_prefix))


def _is_in_use(speculator: Speculator) -> bool:
    jobs = Job.objects.filter(organization_id=speculator.organization_id).exclude(status__in=_ENDED_JOBS)
    if any(jobs.filter(**{f"params__{param}": speculator.pk}).exists() for param in _ID_PARAMS):
        return True
    if jobs.filter(params__compared__has_key=speculator.pk).exists():
        return True  # an evaluation compares another speculator with this one
    if Rollout.objects.filter(previous=speculator).exclude(status__in=_ENDED_ROLLOUTS).exists():
        return True  # the rollout may go back to this speculator
    return Pipeline.objects.filter(speculator=speculator, status__in=ACTIVE).exists()


def target_of(base_model: BaseModel) -> Target:
    try:
        return Target.read(Path(base_model.path), name=base_model.name)
    except (ExchangeError, OSError) as error:
        message = f"The files of {base_model.name!r} cannot be read at the moment."
        raise ApiError(409, message, "base_model_not_ready", "model") from error


def _check_size(size_bytes: int, param: str) -> None:
    limit = get_config().max_weights_bytes
    if size_bytes > limit:
        message = f"Speculators of more than {limit:,} bytes are not converted here, got {size_bytes:,}."
        raise ApiError(413, message, "speculator_too_large", param)


@contextmanager
def conversion_folders(organization_id: str, *names: str) -> Iterator[tuple[Path, ...]]:
    """Creates empty sibling folders in the staging folder, and deletes them when the block ends.

    Raises: ApiError: 429, too many files are being read or written.
    """
    with file_work.taken(organization_id), staging_folder() as root:
        folders = tuple(root / name for name in names)
        for folder in folders:
            folder.mkdir()
        yield folders


@contextmanager
def _as_bad_request(param: str) -> Iterator[None]:
    try:
        yield
    except ExchangeError as error:
        raise ApiError(400, error.message, error.code, param) from error
