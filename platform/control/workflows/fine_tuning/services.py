"""Writers of fine-tuning jobs. The work, its stages and its ending are the pipeline's."""

import re
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from control.core.api.errors import ApiError
from control.core.ids import fine_tuning_job_id
from control.core.storage.undo import stored_bytes_undone
from control.data.files.models import File
from control.data.files.selectors import file_get
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_pause_on_request, job_resume
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audited
from control.workflows.batches.services import batch_window_restart
from control.workflows.datasets.services import prompts_file_create
from control.workflows.fine_tuning.models import FineTuningJob
from control.workflows.fine_tuning.requests import hyperparameters_of, training_of, turbo_of
from control.workflows.fine_tuning.selectors import PAUSED_ON_REQUEST, work_of
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.requests import parse_pipeline_request
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.services import pipeline_cancel, pipeline_create
from control.workflows.pipelines.stages import pipeline_advance
from control.workflows.pipelines.state import ACTIVE

WHY_PAUSED = {"code": PAUSED_ON_REQUEST, "message": "Paused on request, until it is resumed.", "cap_id": None}
MAX_NAME = 64
_TAIL = 8
_PARAMS = {"prompts_file": "training_file", "held_out_file": "validation_file", "training": "turbo.hyperparameters"}


@audited("fine_tuning_job.create")
def fine_tuning_job_create(*, organization: Organization, values: Mapping[str, Any]) -> FineTuningJob:
    """Reads both files to their ends before anything is spent, and starts.

    Args:
        values: of a checked `JobInput`.
    Raises: ApiError: 400 for what cannot be used, naming the first bad line; 404 for a model or file that is not there.
    Effects: the prompts of a file of fine-tuning rows become a file of batch rows, which is the organization's own.
    """
    hyperparameters, turbo = hyperparameters_of(values), turbo_of(values)
    training_file = _given_file(organization, values["training_file"], "training_file")
    validation_file = None
    if values["validation_file"] is not None:
        validation_file = _given_file(organization, values["validation_file"], "validation_file")
    identity = fine_tuning_job_id()
    try:
        with stored_bytes_undone(), transaction.atomic():
            prompts = _as_prompts(training_file, "training_file")
            held_out = None if validation_file is None else _as_prompts(validation_file, "validation_file")
            request = {
                "name": model_name(values["model"], values["suffix"], identity),
                "model": values["model"],
                "prompts_file": prompts.pk,
                "held_out_file": None if held_out is None else held_out.pk,
                "held_out": turbo.held_out,
                "training": training_of(hyperparameters, turbo, values["seed"] or 0),
                "evaluation": turbo.evaluation,
                "gate": turbo.gate,
                "deploy": turbo.deploy,
            }
            pipeline = pipeline_create(organization=organization, request=parse_pipeline_request(request))
            return FineTuningJob.objects.create(
                id=identity,
                organization=organization,
                pipeline=pipeline,
                training_file=training_file,
                validation_file=validation_file,
                hyperparameters=hyperparameters.model_dump(),
                metadata=dict(values["metadata"] or {}),
            )
    except ApiError as error:
        raise _in_openais_words(error) from error


@audited("fine_tuning_job.cancel")
def fine_tuning_job_cancel(*, job: FineTuningJob) -> None:
    """Raises: ApiError: 400, it has ended."""
    pipeline_cancel(pipeline=job.pipeline)


@audited("fine_tuning_job.pause")
def fine_tuning_job_pause(*, job: FineTuningJob) -> None:
    """Its work ends within seconds, and goes on from the last checkpoint or answer when it is resumed.

    Raises: ApiError: 400, it has ended, or its endpoint starts; 409, its stage is just about to end.
    """
    pipeline = pipeline_advance(pipeline=job.pipeline)  # beyond a stage that has ended
    work = work_of(pipeline)
    if work is None:
        raise _wrong_status("pause", pipeline)
    if not job_pause_on_request(job=work, why=WHY_PAUSED):
        raise ApiError(409, "The job is just ending its stage, or is being cancelled. Try again.", "stage_ending")


@audited("fine_tuning_job.resume")
def fine_tuning_job_resume(*, job: FineTuningJob) -> bool:
    """Ends a customer's pause, never that of a spend cap.

    Returns: False: it is not paused.
    Raises: ApiError: 400, it has ended; 429, a spend cap has paused it.
    """
    pipeline = pipeline_fresh(job.pipeline)
    if pipeline.status not in ACTIVE:
        raise _wrong_status("resume", pipeline)
    work = work_of(pipeline)
    if work is None or work.paused is None:
        return False
    if work.paused["code"] != PAUSED_ON_REQUEST:
        message = f"{work.paused['message']} It goes on when the cap is raised or removed."
        headers = {"x-should-retry": "false"}
        raise ApiError(429, message, work.paused["code"], type="insufficient_quota", headers=headers)
    if pipeline.batch is not None and work.kind == Job.Kind.BATCH:
        batch_window_restart(batch=pipeline.batch)
    return job_resume(job=work, code=PAUSED_ON_REQUEST)


def _wrong_status(action: str, pipeline: Pipeline) -> ApiError:
    message = f"Cannot {action} a fine-tuning job whose state is '{pipeline.status}'."
    return ApiError(400, message, "invalid_fine_tuning_job_status")


def model_name(model: str, suffix: str | None, identity: str) -> str:
    """`ft-<model>-<suffix>-<8 characters>`: of the speculator and of its endpoint; the tail makes it unique."""
    stem = "-".join(part for part in ("ft", re.sub(r"[^A-Za-z0-9._-]+", "-", model), suffix) if part)
    return f"{stem[: MAX_NAME - _TAIL - 1]}-{identity[-_TAIL:]}"


def _given_file(organization: Organization, file_id: str, param: str) -> File:
    file = file_get(organization, file_id, param=param)
    if file.purpose not in (File.Purpose.FINE_TUNE, File.Purpose.BATCH):
        message = f"{param} must name a file with purpose 'fine-tune' or 'batch', got one with {file.purpose!r}"
        raise ApiError(400, message, "invalid_value", param)
    return file


def _as_prompts(file: File, param: str) -> File:
    return file if file.purpose == File.Purpose.BATCH else prompts_file_create(file=file, param=param)


def _in_openais_words(error: ApiError) -> ApiError:
    """The pipeline names its own fields; the caller knows others."""
    name, dot, rest = (error.param or "").partition(".")
    if name not in _PARAMS and name not in ("evaluation", "gate", "held_out"):
        return error
    param = f"{_PARAMS.get(name, f'turbo.{name}')}{dot}{rest}"
    message = error.message.replace(error.param or "", param, 1)
    return ApiError(error.status, message, error.code, param, headers=error.headers)
