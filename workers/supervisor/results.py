"""Handles the checkpoints and artifacts that the child processes of training and evaluation jobs write."""

from pathlib import Path

from control.core.storage.backends import get_storage
from control.queue.jobs.services import job_commit_checkpoint
from workers.contracts import Checkpoint, FailureClass, Finished, ShardDone
from workers.supervisor.attempt import Attempt
from workers.supervisor.outcomes import AttemptFailed
from workers.supervisor.quote_caps import pause_at_cap
from workers.supervisor.staging import checkpoint_prefix, stage_folder


def artifact_path(finished: Finished, name: str) -> Path:
    """Returns the path of an artifact. Raises: AttemptFailed: the child wrote no artifact of this name."""
    path = finished.artifacts.get(name)
    if path is None or not Path(path).exists():
        raise AttemptFailed(FailureClass.BUG, "artifact_missing", f"the child made no {name!r}")
    return Path(path)


def stage_checkpoint(attempt: Attempt) -> Path:
    """Returns a folder with the last committed checkpoint; without a checkpoint, the folder is empty."""
    folder = attempt.folder / "checkpoint"
    folder.mkdir()
    if attempt.job.checkpoint_key:
        stage_folder(attempt.job.checkpoint_key, folder)
    return folder


def commit_checkpoint(attempt: Attempt, event: ShardDone | Checkpoint) -> None:
    """Stores and commits the checkpoint. Raises: as `pause_at_cap`."""
    assert isinstance(event, Checkpoint), "only batches make shards"
    prefix = checkpoint_prefix(attempt.claim, event.step)
    get_storage().put_folder(prefix, Path(event.path))
    job_commit_checkpoint(claim=attempt.claim, storage_prefix=prefix, step=event.step)
    pause_at_cap(attempt)
