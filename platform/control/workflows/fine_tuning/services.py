"""Creates, cancels, pauses and resumes fine-tuning jobs. A job's pipeline, or its training job, does the work."""

import re
from typing import Any

from control.core.api.errors import ApiError, over_limit
from control.core.api.requests import parse_request
from control.core.ids import fine_tuning_job_id
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change, transaction_from_first_change
from control.data.files.models import File
from control.queue.jobs.models import Job
from control.queue.jobs.services import UNFINISHED, job_cancel, job_pause_on_request, job_resume
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.workflows.batches.services import batch_window_restart
from control.workflows.datasets.services import prompts_file_store
from control.workflows.fine_tuning.adapters import adapter_training_start, given_file
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
_PURPOSES = (File.Purpose.FINE_TUNE, File.Purpose.BATCH)
_NUM_ID_CHARACTERS = 8  # the name of a job's model ends with this many characters of the job's id
# Maps parameters of a pipeline to parameters of a fine-tuning job.
_PARAMS = {"prompts_file": "training_file", "held_out_file": "validation_file", "training": "turbo.hyperparameters"}


@audited("fine_tuning_job.create", records_itself=True)
def fine_tuning_job_create(*, organization: Organization, request: JobInput) -> FineTuningJob:
    """Reads both files completely before any cost arises, and starts a pipeline, or the training of an adapter.

    Raises: ApiError: 400 for invalid files, naming the first bad line; 404 for a model or file that does not exist.
    Effects: if a file has fine-tuning rows, its prompts are written as batch rows to a new file of the organization.
    """
    if request.learns_labels:
        return adapter_training_start(organization=organization, request=request)
    hyperparameters, turbo = request.chosen_hyperparameters(), request.chosen_turbo()
    training_file = given_file(organization, request.training_file, "training_file", _PURPOSES)
    validation_file = None
    if request.validation_file is not None:
        validation_file = given_file(organization, request.validation_file, "validation_file", _PURPOSES)
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
                "hardware": turbo.hardware,
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
    """Cancels the job's work. Raises: ApiError: 400, the job has ended."""
    if job.pipeline is not None:
        pipeline_cancel(pipeline=job.pipeline)
    elif job.job is not None and not job_cancel(job=job.job):
        current, status = _unended(job)
        if current is None:  # if there is a job, it is being cancelled already
            raise _wrong_status("cancel", status)


@audited("fine_tuning_job.pause")
def fine_tuning_job_pause(*, job: FineTuningJob) -> None:
    """Stops the job's work within seconds. After a resume, the work continues from the last checkpoint or answer.

    Raises: ApiError: 400, the job has ended, or its endpoint is starting; 409, its current stage is about to end.
    """
    if job.pipeline is not None:
        pipeline = pipeline_advance(pipeline=job.pipeline)  # the recorded stage may already have ended
        current, status = stage_job(pipeline), pipeline.status
    else:
        current, status = _unended(job)
    if current is None:
        raise _wrong_status("pause", status)
    if not job_pause_on_request(job=current, why=PAUSE_REASON):
        message = "The job's current stage is about to end, or the job is being cancelled. Try again."
        raise ApiError(409, message, "stage_ending", headers={"Retry-After": "1"})


@audited("fine_tuning_job.resume")
def fine_tuning_job_resume(*, job: FineTuningJob) -> bool:
    """Ends a pause that the customer requested, but not a pause by a spend cap.

    Returns: False if the job is not paused.
    Raises: ApiError: 400, the job has ended; 429, a spend cap has paused it.
    """
    pipeline = None if job.pipeline is None else pipeline_fresh(job.pipeline)
    if pipeline is not None:
        is_active, current, status = pipeline.status in ACTIVE, stage_job(pipeline), pipeline.status
    else:
        current, status = _unended(job)
        is_active = current is not None
    if not is_active:
        raise _wrong_status("resume", status)
    if current is None or current.paused is None:
        return False
    if current.paused["code"] != PAUSED_ON_REQUEST:
        message = f"{current.paused['message']} The job continues when the cap is raised or removed."
        raise over_limit(message, current.paused["code"])
    if pipeline is not None and pipeline.batch is not None and current.kind == Job.Kind.BATCH:
        batch_window_restart(batch=pipeline.batch)
    return job_resume(job=current, code=PAUSED_ON_REQUEST)


def _unended(job: FineTuningJob) -> tuple[Job | None, str]:
    """Returns the training job of an adapter (None if it has ended) and its status."""
    current = Job.objects.get(pk=job.job_id)
    return (current if current.status in UNFINISHED else None), current.status


def _wrong_status(action: str, status: str) -> ApiError:
    message = f"Cannot {action} a fine-tuning job whose state is '{status}'."
    return ApiError(400, message, "invalid_fine_tuning_job_status")


def model_name(model: str, suffix: str | None, identity: str) -> str:
    """`ft-<model>-<suffix>-<8 characters>`: name of the speculator and its endpoint. The last part makes it unique."""
    stem = "-".join(part for part in ("ft", re.sub(r"[^A-Za-z0-9._-]+", "-", model), suffix) if part)
    return f"{stem[: MAX_NAME - _NUM_ID_CHARACTERS - 1]}-{identity[-_NUM_ID_CHARACTERS:]}"


def _as_prompts(file: File, param: str) -> File:
    """Returns the file if it has batch rows, otherwise a new, unsaved file with its prompts as batch rows."""
    return file if file.purpose == File.Purpose.BATCH else prompts_file_store(file=file, param=param)


def _with_openai_param(error: ApiError) -> ApiError:
    """Replaces the name of a pipeline's field in an error by the name of the field that the caller sent."""
    name, dot, rest = (error.param or "").partition(".")
    if name not in _PARAMS and name not in ("evaluation", "gate", "held_out", "hardware"):
        return error
    param = f"{_PARAMS.get(name, f'turbo.{name}')}{dot}{rest}"
    message = error.message.replace(error.param or "", param, 1)
    return ApiError(error.status, message, error.code, param, headers=error.headers)
