"""Trains a speculator, resuming from the last committed checkpoint, and stores the trained speculator."""

from collections.abc import Mapping
from typing import Any

from control.core.settings.config import get_config
from control.core.storage.backends import get_storage
from control.models.catalog.models import Speculator
from control.models.catalog.services import speculator_fail, speculator_ready
from control.queue.jobs.failures import Failure
from control.workflows.fine_tuning.selectors import trains_adapter
from workers.contracts import TrainingSpec
from workers.supervisor.attempt import Attempt, Ending
from workers.supervisor.fine_tuning import fine_tune
from workers.supervisor.quote_caps import pause_at_cap
from workers.supervisor.results import artifact_path, commit_checkpoint, stage_checkpoint
from workers.supervisor.run_child import run_child
from workers.supervisor.staging import (
    artifact_prefix,
    model_dir,
    stage_file,
    stage_speculator,
)


class TrainingHandler:
    """Handles jobs that train speculators. Jobs that train adapters are handled by `fine_tuning`.

    `params` of a speculator's job: speculator_id, tokens_key, method, hyperparameters, seed, initial_speculator_id,
    drop_cut_answers. `answers_key` replaces `tokens_key` if the answers are texts that were made outside this service.
    """

    def run(self, attempt: Attempt) -> Mapping[str, Any]:
        if trains_adapter(attempt.job):
            return fine_tune(attempt)
        pause_at_cap(attempt)
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
        if trains_adapter(attempt.job):
            return  # there is no adapter yet, and the checkpoints stay
        speculator = _speculator(attempt)
        if speculator.status == Speculator.Status.TRAINING:
            speculator_fail(speculator=speculator)


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
        device=attempt.device,
        drop_cut_answers=params.get("drop_cut_answers", False),
        with_suffix_decoding=get_config().suffix_decoding,
    )


def _initial(attempt: Attempt) -> Speculator | None:
    identity = attempt.job.params.get("initial_speculator_id")
    return identity and Speculator.objects.get(pk=identity, organization=attempt.job.organization)
