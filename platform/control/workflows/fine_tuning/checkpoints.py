"""The adapters in the checkpoints of an ended job: their bytes are counted as stored, and customers may delete them.

A running job's checkpoints are working files and are not counted, as those of other jobs. After its end they are kept
until they are deleted, because each can become an adapter.
"""

from collections.abc import Mapping
from functools import partial

from django.db import transaction

from control.core.api.errors import ApiError
from control.core.storage.backends import get_storage
from control.models.adapters.services import CONFIG, WEIGHTS
from control.queue.jobs.checkpoints import checkpoint_folder
from control.queue.jobs.models import Job, JobEvent
from control.queue.jobs.state import TERMINAL
from control.tenants.audit.record import audited
from control.tenants.quotas.models import StoredPart
from control.tenants.quotas.storage import storage_count
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.selectors import CHECKPOINT

DELETED_BYTES = 0  # the value of a deleted checkpoint in `FineTuningJob.checkpoints`


def checkpoints_count(job_id: str, sizes: Mapping[str, int]) -> set[str]:
    """Counts the adapters of the committed checkpoints of an ended job, each of them once.

    Args: sizes: sizes of the job's stored objects, by their whole storage key.
    Returns: the storage keys of the adapters that the customer has not deleted. The others need not be kept.
    """
    kept: set[str] = set()
    with transaction.atomic():
        row = FineTuningJob.objects.select_for_update().filter(job_id=job_id).first()
        if row is None:
            return kept
        found: dict[str, int] = {}
        for event in JobEvent.objects.filter(job_id=job_id, type=CHECKPOINT):
            keys = {key for key in _keys(event) if key in sizes}
            if keys and row.checkpoints.get(str(event.pk)) != DELETED_BYTES:
                kept |= keys
                found[str(event.pk)] = sum(sizes[key] for key in keys)
        _save(row, {**found, **row.checkpoints})
    return kept


@audited("fine_tuning_job.delete_checkpoint")
def checkpoint_delete(*, job: FineTuningJob, checkpoint: JobEvent) -> None:
    """Deletes the adapter of a checkpoint. Adapters that were created from it are copies, and stay.

    Raises: ApiError: 400, the job trains a speculator; 404, the checkpoint was deleted before; 409, the job has not
        ended, and continues from its checkpoints.
    """
    check_servable(job)
    if job.job is None or job.job.status not in TERMINAL:
        message = "The checkpoints of a job can be deleted when the job has ended."
        raise ApiError(409, message, "fine_tuning_job_not_ended", "fine_tuning_job_id")
    with transaction.atomic():
        row = FineTuningJob.objects.select_for_update().get(pk=job.pk)
        if is_deleted(row, checkpoint):
            raise gone()
        # If the process dies before it deletes the objects, `jobs_tidy` deletes them.
        Job.objects.filter(pk=checkpoint.job_id).update(has_stored_work=True)
        _save(row, row.checkpoints | {str(checkpoint.pk): DELETED_BYTES})
        transaction.on_commit(partial(_delete_objects, _keys(checkpoint)))


def is_deleted(job: FineTuningJob, checkpoint: JobEvent) -> bool:
    return bool(job.checkpoints.get(str(checkpoint.pk)) == DELETED_BYTES)


def gone() -> ApiError:
    return ApiError(404, "The files of this checkpoint are no longer stored.", "checkpoint_not_found", "checkpoint_id")


def check_servable(job: FineTuningJob) -> None:
    """Raises: ApiError: 400, the job trains a speculator, whose checkpoints customers cannot use."""
    if job.base_model_id is None:
        message = "This job trains a speculator, which always gets the weights of its best checkpoint."
        raise ApiError(400, message, "checkpoint_not_servable", "checkpoint_id")


def _keys(checkpoint: JobEvent) -> tuple[str, ...]:
    """Returns the storage keys of the checkpoint's adapter."""
    folder = checkpoint_folder(checkpoint.job_id, step=checkpoint.data["step"], fence=checkpoint.data["fence"])
    return tuple(f"{folder}/{name}" for name in (CONFIG, WEIGHTS))


def _save(row: FineTuningJob, checkpoints: Mapping[str, int]) -> None:
    before, row.checkpoints = row.checkpoint_bytes, dict(checkpoints)
    row.checkpoint_bytes = sum(checkpoints.values())
    row.save(update_fields=["checkpoints", "checkpoint_bytes"])
    if row.checkpoint_bytes != before:
        storage_count(row.organization_id, StoredPart.CHECKPOINTS, row.checkpoint_bytes - before)


def _delete_objects(keys: tuple[str, ...]) -> None:
    for key in keys:
        get_storage().delete(key)
