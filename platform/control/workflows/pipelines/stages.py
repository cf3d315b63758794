"""Advances pipelines. All calls are idempotent and safe under races: a second caller finds nothing to do.

A stage's job or deployment is created in the same transaction as the compare-and-swap that assigns it to the pipeline.
Of two concurrent workers, therefore, only one starts the stage; the other's new rows are rolled back. No function waits
for a job: each call makes the transitions that are possible now, and a later call makes the next ones.

The functions in `_STEPS` return whether they changed the pipeline.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog
from django.db import transaction

from control.billing.ledger.models import CreditReason, Subject
from control.billing.spending.quoted import quoted_use_add
from control.billing.usage.credits import credits_add_for_job
from control.billing.usage.device_time import NANO
from control.billing.usage.services import caller_of_job
from control.core.api.errors import ApiError
from control.core.settings.config import get_config
from control.models.catalog.services import speculator_create
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.models import Job
from control.queue.jobs.protocol import LABELS_AND_HARDWARE
from control.queue.jobs.services import job_submit
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_create
from control.tenants.authentication.caller import on_account_of
from control.tenants.quotas.quota import organization_lock
from control.tenants.row_security.each import each_as_tenant
from control.tenants.row_security.scope import as_tenant
from control.workflows.batches.caps import quote_cap_reached
from control.workflows.batches.models import Batch
from control.workflows.batches.services import batch_create
from control.workflows.evaluations.arms import Arm, arms_resolve
from control.workflows.evaluations.services import evaluation_memory_needed, evaluation_start, speculators_lock
from control.workflows.pipelines.engines import distillation_engine, training_memory_needed
from control.workflows.pipelines.gate import gate_objections
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.schemas import Gate
from control.workflows.pipelines.selectors import pipeline_fresh, pipelines_active, pipelines_waiting_for_job
from control.workflows.pipelines.state import Status, transition
from control.workflows.prompt_files.held_out import endpoint_of, held_out_key

log = structlog.get_logger(__name__)


class _OvertakenError(Exception):
    """Another process started the stage or ended the pipeline first."""


def pipeline_advance(*, pipeline: Pipeline) -> Pipeline:
    """Makes all transitions that are possible now. Call it when the pipeline's job or deployment may have changed."""
    while True:
        pipeline = pipeline_fresh(pipeline)
        step = _STEPS.get(Status(pipeline.status))
        if step is None or not step(pipeline):
            return pipeline


def pipeline_distil(*, pipeline: Pipeline, endpoint: str) -> None:
    """Starts the first stage of a new pipeline. Args: endpoint: the endpoint of the rows in the prompts file."""
    _start(pipeline, partial(_make_batch, endpoint=endpoint))


def pipelines_advance_after_job(*, job_id: str) -> None:
    for pipeline in pipelines_waiting_for_job(job_id):
        pipeline_advance(pipeline=pipeline)


def pipelines_of_deployment_advance(deployment_id: str, **_: Any) -> None:
    """Receiver of `deployment_settled`."""
    for pipeline in Pipeline.objects.filter(deployment=deployment_id, status=Status.DEPLOYING):
        try:
            pipeline_advance(pipeline=pipeline)
        except Exception:  # the failure of one pipeline must not end the supervisor of deployments
            log.exception("could not advance a pipeline", pipeline_id=pipeline.pk)


def pipelines_reconcile() -> None:
    """Advances all active pipelines, in case a call was lost. Every worker calls it every few seconds."""
    each_as_tenant(
        pipelines_active(),
        lambda pipeline: pipeline_advance(pipeline=pipeline),
        failure="could not advance a pipeline",
        name="pipeline_id",
    )


def _distil(pipeline: Pipeline) -> bool:
    batch = pipeline.batch
    if batch is None:
        return _start(pipeline, _make_batch)
    if batch.job.status == Job.Status.PAUSED:
        return False  # even if the batch has ended: the customer may have paused the job just before the job ended
    match batch.status:
        case Batch.Status.COMPLETED if batch.tokens_key:
            return transition(pipeline, Status.TRAINING)
        case Batch.Status.COMPLETED:
            message = f"The model answered none of the {batch.total} prompts; see error file {batch.error_file_id}."
            return _fail(pipeline, "no_answers", message)
        case Batch.Status.FAILED | Batch.Status.EXPIRED:
            return _fail(pipeline, *_batch_error(batch))
        case Batch.Status.CANCELLED:
            return transition(pipeline, Status.CANCELLED)
    return False


def _make_batch(pipeline: Pipeline, *, endpoint: str | None = None) -> dict[str, Any]:
    batch = batch_create(
        organization=pipeline.organization,
        input_file=pipeline.prompts_file,
        endpoint=endpoint or endpoint_of(pipeline.prompts_file),
        model=pipeline.base_model.name,
        metadata={"pipeline": pipeline.pk},
        quote=pipeline.quote,
        engine=None if pipeline.engine is None else distillation_engine(_engine(pipeline)),
        hardware=pipeline.hardware,
        **(pipeline.distillation or {}),
    )
    return {"batch": batch}


def _batch_error(batch: Batch) -> tuple[str, str]:
    if batch.status == Batch.Status.EXPIRED:
        return "batch_expired", f"{batch.completed} of {batch.total} prompts were answered before the window ended."
    if not batch.errors:
        return "batch_failed", f"Batch {batch.pk} failed."
    first = batch.errors[0]
    place = "" if first.get("line") is None else f"line {first['line']}: "
    more = f" ({batch.num_errors} errors in all, see batch {batch.pk})" if batch.num_errors > 1 else ""
    return first["code"], f"{place}{first['message']}{more}"


def _train(pipeline: Pipeline) -> bool:
    if pipeline.training_job is None:
        return _start(pipeline, _make_training)
    return _after_job(pipeline, pipeline.training_job, Status.EVALUATING)


def _make_training(pipeline: Pipeline) -> dict[str, Any]:
    hyperparameters = dict(pipeline.training)
    kind, initial = hyperparameters.pop("kind"), hyperparameters.pop("initial_speculator", None)
    speculator = speculator_create(
        organization=pipeline.organization, base_model=pipeline.base_model, name=pipeline.name, kind=kind
    )
    params = {
        "speculator_id": speculator.pk,
        **_answers(pipeline),
        "method": kind,
        "seed": hyperparameters.pop("seed", 0),
        "initial_speculator_id": initial,
        "hyperparameters": hyperparameters,
    }
    job = job_submit(
        organization=pipeline.organization,
        kind=Job.Kind.TRAINING,
        params=params,
        memory_needed=training_memory_needed(pipeline.base_model),
        is_continuation=True,
        hardware=pipeline.hardware,
        min_protocol=LABELS_AND_HARDWARE if "answers_key" in params else 0,
    )
    return {"training_job": job, "speculator": speculator}


def _answers(pipeline: Pipeline) -> dict[str, Any]:
    """Returns the parameters of the training job that say where the answers are."""
    if pipeline.answers == Pipeline.Answers.FILE:
        return {"answers_key": pipeline.prompts_file.storage_key}
    assert pipeline.batch is not None, "distilling ended with a batch"
    return {
        "tokens_key": pipeline.batch.tokens_key,
        "drop_cut_answers": pipeline.batch.on_truncation == Batch.OnTruncation.DROP,
    }


def _evaluate(pipeline: Pipeline) -> bool:
    if pipeline.evaluation_job is None:
        assert pipeline.speculator is not None, "training ended with a speculator"
        settings = {**pipeline.evaluation, "engine": pipeline.engine}
        try:
            with as_tenant(pipeline.organization_id, pipeline.project_id):
                arms = arms_resolve(pipeline.organization, pipeline.speculator, settings.pop("compare_with", []))
        except ApiError as error:  # a speculator to compare with was deleted since the pipeline began
            return _fail(pipeline, error.code or "invalid_request", error.message)
        needed = evaluation_memory_needed(pipeline.speculator, settings, arms)
        return _start(pipeline, partial(_make_evaluation, settings=settings, memory_needed=needed, arms=arms))
    return _after_job(pipeline, pipeline.evaluation_job, Status.GATING)


def _make_evaluation(
    pipeline: Pipeline, *, settings: Mapping[str, Any], memory_needed: Mapping[str, int], arms: Sequence[Arm]
) -> dict[str, Any]:
    assert pipeline.speculator is not None, "training ended with a speculator"
    if arms:
        speculators_lock([pipeline.speculator, *(arm.speculator for arm in arms if arm.speculator is not None)])
    evaluation = evaluation_start(
        speculator=pipeline.speculator,
        prompts=pipeline.held_out_file,
        rows_key=held_out_key(pipeline.organization_id, pipeline.pk),
        settings=settings,
        memory_needed=memory_needed,
        is_continuation=True,
        arms=arms,
        hardware=pipeline.hardware,
    )
    return {"evaluation_job": evaluation.job}


def _gate(pipeline: Pipeline) -> bool:
    assert pipeline.evaluation_job is not None, "evaluation ended with a job"
    objections = gate_objections(Gate.model_validate(pipeline.gate), pipeline.evaluation_job.result)
    if objections:
        return _reject(pipeline, objections)
    return transition(pipeline, Status.DEPLOYING if pipeline.deploy else Status.SUCCEEDED)


def _reject(pipeline: Pipeline, objections: Sequence[str]) -> bool:
    """Ends the pipeline, and credits the cost of its training as far as the operators' settings say."""
    error = {"code": "gate_rejected", "message": "; ".join(objections)}
    with transaction.atomic():
        organization_lock(pipeline.organization_id)  # so that concurrent gates cannot exceed the limit of credits
        rejected = transition(pipeline, Status.REJECTED, error=error, data={"objections": list(objections)})
        if rejected and pipeline.training_job_id is not None:
            config = get_config()
            credits_add_for_job(
                subject=Subject.TRAINING_TIME,
                object_id=pipeline.training_job_id,
                percent=config.credit_gate_percent,
                reason=CreditReason.GATE_REJECTED,
                monthly_limit_nanousd=int(config.credit_gate_limit * NANO),
            )
    return rejected


def _deploy(pipeline: Pipeline) -> bool:
    deployment = pipeline.deployment
    if deployment is None:
        return not _waits_at_cap(pipeline) and _start(pipeline, _make_deployment)
    match deployment.state:
        case Deployment.State.READY | Deployment.State.SLEEPING:
            return transition(pipeline, Status.LIVE)
        case Deployment.State.FAILED:
            error = deployment.error or {}
            message = str(error.get("message", f"Deployment {deployment.pk} failed."))
            return _fail(pipeline, str(error.get("code", "deployment_failed")), message)
        case Deployment.State.STOPPED if deployment.desired_state == Deployment.Desired.STOPPED:
            return _fail(pipeline, "deployment_stopped", "The deployment was stopped before it was ready.")
    return False


def _waits_at_cap(pipeline: Pipeline) -> bool:
    """Records why the endpoint is not created yet, if the quote has reached its cap. A later call creates it."""
    reached = quote_cap_reached(pipeline.quote_id)
    reason = None if reached is None else reached.as_reason()
    if reason != pipeline.paused:
        Pipeline.objects.filter(pk=pipeline.pk, status=Status.DEPLOYING, deployment=None).update(paused=reason)
    return reason is not None


def _make_deployment(pipeline: Pipeline) -> dict[str, Any]:
    deployment = deployment_create(
        organization=pipeline.organization,
        name=pipeline.name,
        base_model=pipeline.base_model,
        speculator=pipeline.speculator,
        engine=None if pipeline.engine is None else _engine(pipeline),
        hardware=pipeline.hardware,
    )
    return {"deployment": deployment}


def _engine(pipeline: Pipeline) -> EngineOptions:
    return EngineOptions.model_validate(pipeline.engine)


def _after_job(pipeline: Pipeline, job: Job, next_status: Status) -> bool:
    match job.status:
        case Job.Status.SUCCEEDED:
            return transition(pipeline, next_status)
        case Job.Status.FAILED:
            error = job.error or {}
            return _fail(pipeline, error.get("code", "job_failed"), error.get("message", f"Job {job.pk} failed."))
        case Job.Status.CANCELLED:
            return transition(pipeline, Status.CANCELLED)
    return False


def _fail(pipeline: Pipeline, code: str, message: str) -> bool:
    return transition(pipeline, Status.FAILED, error={"code": code, "message": message})


def _start(pipeline: Pipeline, make: Callable[[Pipeline], Mapping[str, Any]]) -> bool:
    """Creates the stage's job or deployment with `make` and assigns it to the pipeline, in one transaction."""
    caller = caller_of_job(job_id=pipeline.pk, organization_id=pipeline.organization_id)
    try:
        with as_tenant(pipeline.organization_id, pipeline.project_id), on_account_of(caller), transaction.atomic():
            made = make(pipeline)
            unset = dict.fromkeys(made)  # these fields are still null unless another process was faster
            if not Pipeline.objects.filter(pk=pipeline.pk, status=pipeline.status, **unset).update(**made):
                raise _OvertakenError
            _count_under_quote(pipeline, made)
    except _OvertakenError:
        return False
    except ApiError as error:  # for example the deployment's name was taken since the pipeline began
        if _has_started(pipeline):  # the name, for example, is taken by the deployment that another process created
            return False
        return _fail(pipeline, error.code or "invalid_request", error.message)
    return True


def _count_under_quote(pipeline: Pipeline, made: Mapping[str, Any]) -> None:
    """Counts the device time of the stage's job or deployment towards the cap of the pipeline's quote."""
    if pipeline.quote_id is None:
        return
    for name in ("batch", "training_job", "evaluation_job", "deployment"):
        if (row := made.get(name)) is not None:
            object_id = row.job_id if isinstance(row, Batch) else row.pk
            quoted_use_add(organization_id=pipeline.organization_id, quote_id=pipeline.quote_id, object_id=object_id)


def _has_started(pipeline: Pipeline) -> bool:
    """Returns whether another process has started the pipeline's stage since `pipeline` was read."""
    started = ("batch", "training_job", "evaluation_job", "deployment")
    return not Pipeline.objects.filter(pk=pipeline.pk, **{name: getattr(pipeline, name) for name in started}).exists()


_STEPS: Mapping[Status, Callable[[Pipeline], bool]] = {
    Status.DISTILLING: _distil,
    Status.TRAINING: _train,
    Status.EVALUATING: _evaluate,
    Status.GATING: _gate,
    Status.DEPLOYING: _deploy,
}
