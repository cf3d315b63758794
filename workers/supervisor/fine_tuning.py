"""Trains an adapter on labels, resuming from the last committed checkpoint, and stores it as an adapter."""

from collections.abc import Mapping
from typing import Any

from control.core.api.errors import ApiError
from control.workflows.fine_tuning.adapters import adapter_trained
from control.workflows.fine_tuning.models import FineTuningJob
from workers.contracts import FailureClass, FineTuningSpec
from workers.supervisor.attempt import Attempt
from workers.supervisor.outcomes import AttemptFailed
from workers.supervisor.results import artifact_path, commit_checkpoint, stage_checkpoint
from workers.supervisor.run_child import run_child
from workers.supervisor.staging import model_dir, stage_file


def fine_tune(attempt: Attempt) -> Mapping[str, Any]:
    """Handles a training job whose method is `lora`. `params`: fine_tuning_job_id, hyperparameters, seed."""
    job = FineTuningJob.objects.select_related("organization", "base_model", "training_file", "validation_file").get(
        pk=attempt.job.params["fine_tuning_job_id"], organization=attempt.job.organization
    )
    finished = run_child(attempt, _spec(attempt, job), on_result=lambda event: commit_checkpoint(attempt, event))
    folder = artifact_path(finished, "adapter")
    attempt.lease.check()
    try:
        adapter = adapter_trained(job=job, folder=folder)
    except ApiError as error:  # for example, the adapter exceeds the storage limit; its checkpoints remain
        raise AttemptFailed(FailureClass.USER_CONFIG, error.code or "adapter_not_stored", error.message) from error
    return {**finished.result, "adapter_id": adapter.pk}


def _spec(attempt: Attempt, job: FineTuningJob) -> FineTuningSpec:
    assert job.base_model is not None, "a job without a pipeline has a model"
    params, validation = attempt.job.params, None
    if job.validation_file is not None:
        validation = str(stage_file(job.validation_file.storage_key, attempt.folder / "validation.jsonl"))
    return FineTuningSpec(
        job_id=attempt.job.pk,
        model_dir=model_dir(job.base_model),
        target_revision=job.base_model.revision,
        rows_path=str(stage_file(job.training_file.storage_key, attempt.folder / "rows.jsonl")),
        validation_path=validation,
        output_dir=str(attempt.folder / "output"),
        checkpoint_dir=str(stage_checkpoint(attempt)),
        hyperparameters=params["hyperparameters"],
        seed=params["seed"],
        device=attempt.device,
    )
