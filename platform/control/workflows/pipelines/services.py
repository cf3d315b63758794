"""Creates, cancels and resumes pipelines on a customer's request. The module `stages` advances them."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction

from control.billing.usage.selectors import require_price
from control.billing.usage.services import usage_attribute
from control.core.api.errors import ApiError
from control.core.ids import pipeline_id
from control.core.storage.undo import delete_stored_on_error
from control.core.transactions import change
from control.data.files.models import File
from control.data.files.selectors import batch_file_check, file_get
from control.data.files.services import file_add
from control.models.base_speculators.services import speculator_preview, speculator_resolve
from control.models.catalog.models import BaseModel, Speculator
from control.models.catalog.selectors import base_model_get
from control.queue.jobs.services import job_cancel, queued_quota_check
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_start, deployment_stop
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.tenants.events.services import event_record
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_cancel
from control.workflows.batches.state import TERMINAL as BATCH_ENDED
from control.workflows.datasets.answers import answers_file_check
from control.workflows.distillations.selectors import distillation_get
from control.workflows.evaluations.arms import Arm, arms_preview
from control.workflows.pipelines.engines import pipeline_plan
from control.workflows.pipelines.models import Pipeline, PipelineEvent
from control.workflows.pipelines.parts import pipeline_parts
from control.workflows.pipelines.schemas import Gate, PipelineOptions, PipelinePlan, Training
from control.workflows.pipelines.selectors import pipeline_fresh
from control.workflows.pipelines.stages import pipeline_advance, pipeline_distil
from control.workflows.pipelines.state import ACTIVE, RESUMABLE, STAGES, Status, stage_at_end, transition
from control.workflows.prompt_files.held_out import endpoint_of
from control.workflows.quotes.selectors import quote_get
from workers.kinds import AUTO


@audited("pipeline.create", records_itself=True)
def pipeline_create(
    *, organization: Organization, request: PipelineOptions, new_files: Sequence[File] = ()
) -> Pipeline:
    """Checks the request, splits off held-out prompts unless the request names a file of them, and starts a pipeline.

    The contents of files are stored before the transaction that saves their rows.

    Args:
        new_files: unsaved rows of `file_store` that the request names; they are saved together with the pipeline.
    Raises: ApiError: 400, a file cannot be used, or an engine does not fit; 403, the model has no price; 404, no such
        model or file; 409, the name of the endpoint is taken.
    """
    base_model = base_model_get(organization, request.model)
    require_price(base_model_id=base_model.pk, name=base_model.name)
    request = _with_initial(organization, request, base_model)
    quote = None if request.quote_id is None else quote_get(organization, request.quote_id)
    batch = _distillation_batch(organization, request.distillation_id, base_model)
    given = {file.pk: file for file in new_files}
    prompts = batch.input_file if batch else _prompts_file(organization, given, request)
    if request.deploy:
        _refuse_taken_name(organization, request.name)
    pipeline_plan(base_model, request, _arms(organization, request, base_model))
    queued_quota_check(organization.pk)  # to fail early; the first stage checks again, under the lock
    identity = pipeline_id()
    with delete_stored_on_error():
        named = None
        if request.held_out_file is not None:
            named = _batch_file(organization, given, request.held_out_file, "held_out_file")
        parts = pipeline_parts(identity, base_model, request, prompts, named)
        distils = batch is None and request.answers == Pipeline.Answers.MODEL
        endpoint = endpoint_of(parts.prompts) if distils else None
        with change():
            for file in (*new_files, *parts.new_files):
                file_add(file=file)
            pipeline = _pipeline_start(
                organization=organization,
                request=request,
                id=identity,
                base_model=base_model,
                prompts_file=parts.prompts,
                held_out_file=parts.held_out,
                held_out_duplicates=parts.num_duplicates,
                contamination=parts.contamination,
                sensitive=parts.sensitive,
                quote=quote,
                batch=batch,
            )
            if endpoint is not None:
                pipeline_distil(pipeline=pipeline, endpoint=endpoint)
    return pipeline_advance(pipeline=pipeline)


def pipeline_validate(*, organization: Organization, request: PipelineOptions) -> PipelinePlan:
    """Checks that the objects that the request names exist, and plans the engines.

    Raises: ApiError: as `pipeline_create`.
    """
    base_model = base_model_get(organization, request.model)
    if (named := request.training.initial_speculator) is not None:
        _check_initial(speculator_preview(organization, named), request.training, base_model)
    if request.quote_id is not None:
        quote_get(organization, request.quote_id)
    _distillation_batch(organization, request.distillation_id, base_model)
    if request.prompts_file is not None:
        _prompts_file(organization, {}, request)
    if request.held_out_file is not None:
        _batch_file(organization, {}, request.held_out_file, "held_out_file")
    if request.deploy:
        _refuse_taken_name(organization, request.name)
    return pipeline_plan(base_model, request, _arms(organization, request, base_model))


def _pipeline_start(*, organization: Organization, request: PipelineOptions, **values: Any) -> Pipeline:
    """Creates the pipeline at its first stage."""
    has_answers = values["batch"] is not None or request.answers == Pipeline.Answers.FILE
    status = Status.TRAINING if has_answers else Status.DISTILLING
    pipeline = Pipeline.objects.create(
        organization=organization,
        name=request.name,
        answers=request.answers,
        distillation=None if request.distillation is None else request.distillation.model_dump(),
        training=request.training.model_dump(),
        evaluation=request.evaluation.model_dump(),
        gate=_stored_gate(request.gate),
        engine=None if request.engine is None else request.engine.model_dump(),
        hardware=request.hardware or "",
        deploy=request.deploy,
        status=status,
        **values,
    )
    PipelineEvent.objects.create(pipeline=pipeline, status=status, data={"stage": STAGES[status]})
    event_record(
        organization_id=organization.pk,
        project_id=pipeline.project_id,
        type=f"pipeline.{status.value}",
        object_id=pipeline.pk,
    )
    usage_attribute(job_id=pipeline.pk, organization_id=organization.pk)
    audit_record("pipeline.create", pipeline)
    return pipeline


def _stored_gate(gate: Gate) -> dict[str, Any]:
    """Returns the gate, without `max_break_even_tokens` if it is not set: the previous release refuses the key."""
    stored = gate.model_dump()
    if gate.max_break_even_tokens is None:
        del stored["max_break_even_tokens"]
    return stored


def _with_initial(organization: Organization, request: PipelineOptions, base_model: BaseModel) -> PipelineOptions:
    """Returns the request. The organization's use of a base speculator replaces the base speculator in the request.

    Raises: ApiError: 404, `initial_speculator` does not exist; 400, training cannot continue from it.
    """
    named = request.training.initial_speculator
    if named is None:
        return request
    _check_initial(speculator_preview(organization, named), request.training, base_model)
    training = request.training.model_copy(update={"initial_speculator": speculator_resolve(organization, named).pk})
    return request.model_copy(update={"training": training})


def _check_initial(initial: Speculator, training: Training, base_model: BaseModel) -> None:
    """Raises: ApiError: 400, training cannot continue from this speculator."""
    param = "training.initial_speculator"
    if training.kind == AUTO:
        message = f"{param} cannot be given with kind auto; set training.kind to {initial.kind}, the speculator's kind"
        raise ApiError(400, message, "invalid_value", param)
    wanted = (training.kind, base_model.pk, base_model.revision, Speculator.Status.READY.value)
    got = (initial.kind, initial.base_model_id, initial.target_revision, initial.status)
    if got != wanted:
        message = f"{param} must be a ready {training.kind} of this model and revision, got a {initial.status} "
        message += f"{initial.kind} of {initial.base_model.name} at {initial.target_revision[:12]}"
        raise ApiError(400, message, "invalid_value", param)


def _arms(organization: Organization, request: PipelineOptions, base_model: BaseModel) -> list[Arm]:
    """Returns the further arms of the evaluation. Raises: ApiError: as `arms_resolve`."""
    future = Speculator(base_model=base_model, kind=request.training.kind, target_revision=base_model.revision)
    return arms_preview(organization, future, request.evaluation.compare_with, param="evaluation.compare_with")


def _distillation_batch(organization: Organization, distillation_id: str | None, base_model: BaseModel) -> Batch | None:
    """Returns the batch of the distillation on whose answers the pipeline trains; None if no distillation is given.

    Raises: ApiError: 404, no such distillation; 400, a distillation of another model; 409, it has no answers.
    """
    if distillation_id is None:
        return None
    batch = distillation_get(organization, distillation_id).batch
    if batch.base_model_id != base_model.pk:
        message = f"distillation_id must name a distillation of {base_model.name!r}."
        raise ApiError(400, message, "model_mismatch", "distillation_id")
    if not batch.tokens_key:
        message = f"The distillation is {batch.status} and has no answers to train on."
        raise ApiError(409, message, "distillation_not_trainable", "distillation_id")
    return batch


def _prompts_file(organization: Organization, given: Mapping[str, File], request: PipelineOptions) -> File:
    """Returns the file of prompts. If the file must have answers, it may also have fine-tuning rows."""
    file_id = request.prompts_file or ""
    if request.answers == Pipeline.Answers.FILE:
        return given.get(file_id) or answers_file_check(file_get(organization, file_id, param="prompts_file"))
    return _batch_file(organization, given, file_id, "prompts_file")


def _batch_file(organization: Organization, given: Mapping[str, File], file_id: str, param: str) -> File:
    """Returns one of the `given` files, or else a file of the organization."""
    file = given.get(file_id) or file_get(organization, file_id, param=param)
    return batch_file_check(file, param=param)


def _refuse_taken_name(organization: Organization, name: str) -> None:
    if Deployment.objects.filter(organization=organization, name=name, deleted_at=None).exists():
        raise ApiError(409, f"There is already a deployment named {name!r}.", "name_taken", "name")


@audited("pipeline.cancel")
def pipeline_cancel(*, pipeline: Pipeline) -> Pipeline:
    """Cancels the current stage. Finished stages and partial results are kept, and the pipeline can be resumed.

    Raises: ApiError: 400, the pipeline has ended.
    """
    while True:
        pipeline = pipeline_fresh(pipeline)
        if pipeline.status == Status.CANCELLED:
            return pipeline
        if pipeline.status not in ACTIVE:
            raise ApiError(400, f"Cannot cancel a pipeline with status '{pipeline.status}'.", "invalid_pipeline_status")
        with transaction.atomic():
            if transition(pipeline, Status.CANCELLED, paused=None):
                # The stage may have started a job since the pipeline was read above.
                cancelled = pipeline_fresh(pipeline)
                _stop_stage(Status(pipeline.status), cancelled)
                return cancelled
        # Another process changed the status meanwhile: try again.


def _stop_stage(stage: Status, pipeline: Pipeline) -> None:
    match stage:
        case Status.DISTILLING if pipeline.batch is not None and pipeline.batch.status not in BATCH_ENDED:
            batch_cancel(batch=pipeline.batch)
        case Status.TRAINING if pipeline.training_job is not None:
            job_cancel(job=pipeline.training_job)
        case Status.EVALUATING if pipeline.evaluation_job is not None:
            job_cancel(job=pipeline.evaluation_job)
        case Status.DEPLOYING if pipeline.deployment is not None:
            deployment_stop(deployment=pipeline.deployment)


@audited("pipeline.resume")
def pipeline_resume(*, pipeline: Pipeline) -> Pipeline:
    """Restarts the stage that failed or was cancelled, with a new job. Finished stages are kept.

    Raises: ApiError: 400, the pipeline neither failed nor was cancelled.
    """
    pipeline = pipeline_fresh(pipeline)
    if pipeline.status not in RESUMABLE:
        raise ApiError(400, f"Cannot resume a pipeline with status '{pipeline.status}'.", "invalid_pipeline_status")
    stage = stage_at_end(pipeline)
    status = next(status for status, name in STAGES.items() if name == stage)
    cleared_fields: dict[Status, dict[str, None]] = {
        Status.DISTILLING: {"batch": None},
        Status.TRAINING: {"training_job": None, "speculator": None},
        Status.EVALUATING: {"evaluation_job": None},
    }
    with transaction.atomic():
        moved = transition(
            pipeline, status, data={"stage": stage, "resumed": True}, error=None, **cleared_fields.get(status, {})
        )
        if moved and status == Status.DEPLOYING and pipeline.deployment is not None:
            _deploy_again(pipeline, pipeline.deployment)
    return pipeline_advance(pipeline=pipeline)


def _deploy_again(pipeline: Pipeline, deployment: Deployment) -> None:
    if deployment.deleted_at is None:
        deployment_start(deployment=deployment)
    else:
        Pipeline.objects.filter(pk=pipeline.pk).update(deployment=None)
