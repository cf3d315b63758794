"""Copies the inputs of a job to this machine and names the storage keys of its outputs."""

from pathlib import Path

from control.core.processes.engine_users import make_model_readable
from control.core.settings.config import get_config
from control.core.storage.backends import ObjectMissing, get_storage
from control.models.catalog.folder import UnusableModel
from control.models.catalog.models import BaseModel, Speculator
from control.models.catalog.sources import model_folder
from control.queue.jobs.checkpoints import checkpoint_folder
from control.queue.jobs.state import Claim
from workers.contracts import FailureClass
from workers.supervisor.outcomes import AttemptFailed


def stage_file(key: str, path: Path) -> Path:
    """Copies an object from storage to `path`.

    Raises: AttemptFailed: the object was deleted, so another attempt would fail too.
    """
    try:
        get_storage().get_file(key, path)
    except ObjectMissing as error:
        raise _input_failure("input_missing", "An input of this job is no longer in storage.") from error
    return path


def stage_folder(prefix: str, path: Path) -> Path:
    """Copies a folder from storage to `path`.

    Raises: AttemptFailed: the folder was deleted, so another attempt would fail too.
    """
    try:
        get_storage().get_folder(prefix, path)
    except ObjectMissing as error:
        raise _input_failure("input_missing", "An input of this job is no longer in storage.") from error
    return path


def model_dir(base_model: BaseModel) -> str:
    """Returns the model's folder. Raises: AttemptFailed: this machine neither has the folder nor can fetch it."""
    try:
        folder = model_folder(base_model)
    except UnusableModel as error:
        message = f"The files of model {base_model.name!r} are not available: {error.message}"
        raise _input_failure("model_missing", message) from error
    make_model_readable(get_config(), folder, owner_id=base_model.organization_id)
    return str(folder)


def stage_speculator(speculator: Speculator | None, path: Path) -> str | None:
    return None if speculator is None else str(stage_folder(speculator.artifact_prefix, path))


def shard_key(claim: Claim, shard_no: int) -> str:
    return f"jobs/{claim.job_id}/shards/{shard_no}.{claim.fence}.jsonl"


def checkpoint_prefix(claim: Claim, step: int) -> str:
    return checkpoint_folder(claim.job_id, step=step, fence=claim.fence)


def artifact_prefix(claim: Claim, name: str) -> str:
    return f"jobs/{claim.job_id}/{name}.{claim.fence}"


def _input_failure(code: str, message: str) -> AttemptFailed:
    return AttemptFailed(FailureClass.USER_CONFIG, code, message)
