"""Creates, cancels, pauses and resumes fine-tuning jobs. The work of a job is done by its pipeline."""

import re
from typing import Any

from control.core.api.errors import ApiError, over_limit
from control.core.api.requests import parse_request
from control.core.ids import fine_tuning_job_id
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change, transaction_from_first_change
from control.data.files.models import File
from control.data.files.selectors import file_get
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_pause_on_request, job_resume
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.workflows.batches.services import batch_window_restart
from control.workflows.datasets.services import prompts_file_store
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.schemas import Hyperparameters, JobInput, TurboInput
from control.workflows.fine_tuning.selectors import PAUSED_ON_REQUEST, stage_job
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.requests import create_from
from control.workflows.pipelines.schemas import PipelineRequest
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.services import pipeline_cancel
from control.workflows.pipelines.stages import pipeline_advance
from control.workflows.pipelines.state import ACTIVE
from workers.hyperparameters.kinds import read_hyperparameters

PAUSE_REASON = {"code": PAUSED_ON_REQUEST, "message": "Paused on request, until it is resumed.", "cap_id": None}
MAX_NAME = 64
_NUM_ID_CHARACTERS = 8  # the name of a job's model ends with this many characters of the job's id
# Maps parameters of a pipeline to parameters of a fine-tuning job.
_PARAMS = {"prompts_file": "training_file", "held_out_file": "validation_file", "training": "turbo.hyperparameters"}


@audited("fine_tuning_job.create", records_itself=True)
def fine_tuning_job_create(*, organization: Organization, request: JobInput) -> FineTuningJob:
    """Reads both files completely before any cost arises, and starts a pipeline.

    Raises: ApiError: 400 for invalid files, naming the first bad line; 404 for a model or file that does not exist.
    Effects: the prompts of a file of fine-tuning rows are written to a new file of batch rows of the organization.
    """
    hyperparameters, turbo = request.chosen_hyperparameters(), request.chosen_turbo()
    training_file = _given_file(organization, request.training_file, "training_file")
    validation_file = None
    if request.validation_file is not None:
        validation_file = _given_file(organization, request.validation_file, "validation_file")
    identity = fine_tuning_job_id()
    try:
        with delete_stored_on_error():
            has_answers = turbo.answers == Pipeline.Answers.FILE
            prompts = training_file if has_answers else _as_prompts(training_file, "training_file")
            held_out = None if validation_file is None else _as_prompts(validation_file, "validation_file")
            body = {
                "name": model_name(request.model, request.suffix, identity),
                "model": request.model,
                "prompts_file": prompts.pk,
                "held_out_file": None if held_out is None else held_out.pk,
                "answers": turbo.answers,
                "held_out": turbo.held_out,
                "on_contamination": turbo.on_contamination,
                "on_sensitive": turbo.on_sensitive,
                "training": _training(hyperparameters, turbo, request.seed or 0),
                "evaluation": turbo.evaluation,
                "gate": turbo.gate,
                "deploy": turbo.deploy,
            }
            new_files = [file for file in (prompts, held_out) if file not in (None, training_file, validation_file)]
            with transaction_from_first_change():
                pipeline = create_from(organization, parse_request(PipelineRequest, body), new_files)
                with change():
                    job = FineTuningJob.objects.create(
                        id=identity,
                        organization=organization,
                        pipeline=pipeline,
                        training_file=training_file,
                        validation_file=validation_file,
                        hyperparameters=hyperparameters.model_dump(),
                        metadata=request.metadata or {},
                    )
                    audit_record("fine_tuning_job.create", job)
    except ApiError as error:
        raise _with_openai_param(error) from error
    return job


def _training(hyperparameters: Hyperparameters, turbo: TurboInput, seed: int) -> dict[str, Any]:
    """Returns the pipeline's parameter `training`. Hyperparameters in `turbo` take precedence over OpenAI's."""
    training: dict[str, Any] = {"kind": turbo.kind, "seed": seed}
    if hyperparameters.n_epochs != "auto":
        training["epochs"] = hyperparameters.n_epochs
    if hyperparameters.learning_rate_multiplier != "auto":
        default_rate = read_hyperparameters(turbo.kind, {}).loop.learning_rate
        training["learning_rate"] = min(1.0, default_rate * hyperparameters.learning_rate_multiplier)
    return {**training, **turbo.hyperparameters}


@audited("fine_tuning_job.cancel")
def fine_tuning_job_cancel(*, job: FineTuningJob) -> None:
    """Cancels the job's pipeline. Raises: ApiError: 400, the job has ended."""
    pipeline_cancel(pipeline=job.pipeline)


@audited("fine_tuning_job.pause")
def fine_tuning_job_pause(*, job: FineTuningJob) -> None:
    """Stops the job's work within seconds. After a resume, the work continues from the last checkpoint or answer.

    Raises: ApiError: 400, the job has ended, or its endpoint is starting; 409, its current stage is about to end.
    """
    pipeline = pipeline_advance(pipeline=job.pipeline)  # the recorded stage may already have ended
    current_job = stage_job(pipeline)
    if current_job is None:
        raise _wrong_status("pause", pipeline)
    if not job_pause_on_request(job=current_job, why=PAUSE_REASON):
        message = "The job's current stage is about to end, or the job is being cancelled. Try again."
        raise ApiError(409, message, "stage_ending", headers={"Retry-After": "1"})


@audited("fine_tuning_job.resume")
def fine_tuning_job_resume(*, job: FineTuningJob) -> bool:
    """Ends a pause that the customer requested, but not a pause by a spend cap.

    Returns: False if the job is not paused.
    Raises: ApiError: 400, the job has ended; 429, a spend cap has paused it.
    """
    pipeline = pipeline_fresh(job.pipeline)
    if pipeline.status not in ACTIVE:
        raise _wrong_status("resume", pipeline)
    current_job = stage_job(pipeline)
    if current_job is None or current_job.paused is None:
        return False
    if current_job.paused["code"] != PAUSED_ON_REQUEST:
        message = f"{current_job.paused['message']} The job continues when the cap is raised or removed."
        raise over_limit(message, current_job.paused["code"])
    if pipeline.batch is not None and current_job.kind == Job.Kind.BATCH:
        batch_window_restart(batch=pipeline.batch)
    return job_resume(job=current_job, code=PAUSED_ON_REQUEST)


def _wrong_status(action: str, pipeline: Pipeline) -> ApiError:
    message = f"Cannot {action} a fine-tuning job whose state is '{pipeline.status}'."
    return ApiError(400, message, "invalid_fine_tuning_job_status")


def model_name(model: str, suffix: str | None, identity: str) -> str:
    """`ft-<model>-<suffix>-<8 characters>`: name of the speculator and its endpoint. The last part makes it unique."""
    stem = "-".join(part for part in ("ft", re.sub(r"[^A-Za-z0-9._-]+", "-", model), suffix) if part)
    return f"{stem[: MAX_NAME - _NUM_ID_CHARACTERS - 1]}-{identity[-_NUM_ID_CHARACTERS:]}"


def _given_file(organization: Organization, file_id: str, param: str) -> File:
    file = file_get(organization, file_id, param=param)
    if file.purpose not in (File.Purpose.FINE_TUNE, File.Purpose.BATCH):
        message = f"{param} must name a file with purpose 'fine-tune' or 'batch', got purpose {file.purpose!r}"
        raise ApiError(400, message, "invalid_value", param)
    return file


def _as_prompts(file: File, param: str) -> File:
    """Returns the file if it has batch rows, otherwise a new, unsaved file with its prompts as batch rows."""
    return file if file.purpose == File.Purpose.BATCH else prompts_file_store(file=file, param=param)


def _with_openai_param(error: ApiError) -> ApiError:
    """Replaces the name of a pipeline's field in an error by the name of the field that the caller sent."""
    name, dot, rest = (error.param or "").partition(".")
    if name not in _PARAMS and name not in ("evaluation", "gate", "held_out"):
        return error
    param = f"{_PARAMS.get(name, f'turbo.{name}')}{dot}{rest}"
    message = error.message.replace(error.param or "", param, 1)
    return ApiError(error.status, message, error.code, param, headers=error.headers)
