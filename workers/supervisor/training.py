"""Trains a speculator, resuming from the last committed checkpoint, and stores the trained speculator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.models.catalog.services import speculator_fail, speculator_ready
from control.queue.jobs.failures import Failure
from control.queue.jobs.services import job_commit_checkpoint
from workers.contracts import Checkpoint, FailureClass, Finished, ShardDone, TrainingSpec
from workers.supervisor.attempt import Attempt, Ending
from workers.supervisor.outcomes import AttemptFailed
from workers.supervisor.run_child import run_child
from workers.supervisor.staging import (
    artifact_prefix,
    checkpoint_prefix,
    model_dir,
    stage_file,
    stage_folder,
    stage_speculator,
)


class TrainingHandler:
    """Handles training jobs. `params`: speculator_id, tokens_key, method, hyperparameters, seed, initial_speculator_id,
    drop_cut_answers. `answers_key` instead of `tokens_key`: the answers are texts that no batch of this service made.
    """

    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        speculator = _speculator(attempt)
        finished = run_child(
            attempt, _spec(attempt, speculator), on_result=lambda event: commit_checkpoint(attempt, event)
        )
        prefix = artifact_prefix(attempt.claim, "speculator")
        get_storage().put_folder(prefix, artifact_path(finished, "speculator"))
        attempt.lease.check()
        speculator_ready(speculator=speculator, storage_prefix=prefix, training=finished.result)
        return finished.result

    def end(self, attempt: Attempt, ending: Ending, failure: Failure | None) -> None:
        speculator = _speculator(attempt)
        if speculator.status == Speculator.Status.TRAINING:
            speculator_fail(speculator=speculator)


def artifact_path(finished: Finished, name: str) -> Path:
    """Returns the path of an artifact. Raises: AttemptFailed: the child wrote no artifact of this name."""
    path = finished.artifacts.get(name)
    if path is None or not Path(path).exists():
        raise AttemptFailed(FailureClass.BUG, "artifact_missing", f"the child made no {name!r}")
    return Path(path)


def _speculator(attempt: Attempt) -> Speculator:
    return Speculator.objects.select_related("base_model").get(
        pk=attempt.job.params["speculator_id"], organization=attempt.job.organization
    )


def _spec(attempt: Attempt, speculator: Speculator) -> TrainingSpec:
    params = attempt.job.params
    answers: str | None = None
    tokens: tuple[str, ...] = ()
    if "answers_key" in params:
        answers = str(stage_file(params["answers_key"], attempt.folder / "answers.jsonl"))
    else:
        tokens = (str(stage_file(params["tokens_key"], attempt.folder / "tokens.jsonl")),)
    return TrainingSpec(
        job_id=attempt.job.pk,
        model_dir=model_dir(speculator.base_model),
        target_revision=speculator.target_revision,
        method=params["method"],
        tokens_paths=tokens,
        answers_path=answers,
        output_dir=str(attempt.folder / "output"),
        checkpoint_dir=str(stage_checkpoint(attempt)),
        hyperparameters=params.get("hyperparameters", {}),
        seed=params.get("seed", 0),
        initial_speculator_dir=stage_speculator(_initial(attempt), attempt.folder / "initial"),
        device=get_config().device,
        drop_cut_answers=params.get("drop_cut_answers", False),
        with_suffix_decoding=get_config().suffix_decoding,
    )


def _initial(attempt: Attempt) -> Speculator | None:
    identity = attempt.job.params.get("initial_speculator_id")
    return identity and Speculator.objects.get(pk=identity, organization=attempt.job.organization)


def stage_checkpoint(attempt: Attempt) -> Path:
    """Returns a folder with the last committed checkpoint; without a checkpoint, the folder is empty."""
    folder = attempt.folder / "checkpoint"
    folder.mkdir()
    if attempt.job.checkpoint_key:
        stage_folder(attempt.job.checkpoint_key, folder)
    return folder


def commit_checkpoint(attempt: Attempt, event: ShardDone | Checkpoint) -> None:
    assert isinstance(event, Checkpoint), "only batches make shards"
    prefix = checkpoint_prefix(attempt.claim, event.step)
    get_storage().put_folder(prefix, Path(event.path))
    job_commit_checkpoint(claim=attempt.claim, storage_prefix=prefix, step=event.step)
