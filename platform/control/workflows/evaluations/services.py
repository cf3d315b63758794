"""Creates, cancels and finishes evaluations, for the API and for the evaluate stage of pipelines."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import transaction
from django.utils import timezone

from control.billing.usage.selectors import require_price
from control.core.api.errors import ApiError
from control.core.certificates import certificate_of
from control.core.ids import evaluation_id
from control.core.settings.config import get_config
from control.core.transactions import change
from control.data.files.models import File
from control.models.catalog.drafters import drafter_of
from control.models.catalog.models import Speculator
from control.models.catalog.services import speculator_report
from control.models.engines.planning import Purpose, Workload, engine_plan, memory_needed
from control.models.engines.schemas import EngineOptions
from control.queue.jobs.models import Job
from control.queue.jobs.services import job_cancel, job_submit, queued_quota_check
from control.tenants.accounts.models import Organization
from control.tenants.audit.record import audit_record, audited
from control.workflows.evaluations.arms import Arm, arm_params
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.schemas import EvaluationOptions
from control.workflows.evaluations.selectors import creation_seconds, pipeline_of
from control.workflows.prompt_files.contamination import contamination_of
from control.workflows.prompt_files.held_out import held_out_key, normalise_held_out

# Members of a request that are not settings of the evaluation.
_NO_SETTINGS = {"speculator_id", "prompts_file", "validate_only", "compare_with", "hardware"}
_COMPARED = ("arms", "pairs")  # parts of a report that name other speculators, perhaps of other projects


@audited("evaluation.create", records_itself=True)
def evaluation_create(
    *,
    organization: Organization,
    speculator: Speculator,
    prompts: File | None,
    request: EvaluationOptions,
    arms: Sequence[Arm] = (),
) -> Evaluation:
    """Checks the request and queues the evaluation.

    Args:
        prompts: the prompts to evaluate on; None: the prompts that the speculator's pipeline held out.
        arms: the further arms, checked by `arms_resolve`.
    Raises: ApiError: 400, prompts are missing or invalid, or an engine with these options is not possible; 403, the
        model has no price; 409, a speculator is not ready; 429, too many queued jobs.
    """
    workload = evaluation_workload(speculator, request.concurrencies, arms, request.hardware or "")
    require_price(base_model_id=speculator.base_model_id, name=speculator.base_model.name)
    engine_plan(request.engine or EngineOptions(), workload)
    queued_quota_check(organization.pk)  # to fail early
    identity, pipeline, contamination = evaluation_id(), pipeline_of(speculator), None
    if prompts is not None:
        if pipeline is not None and pipeline.prompts_file.deleted_at is None:
            contamination = contamination_of(pipeline.prompts_file, prompts, param="prompts_file")
        rows_key = evaluation_rows_key(organization.pk, identity)
        normalise_held_out(prompts, base_model=speculator.base_model, key=rows_key, param="prompts_file")
    elif pipeline is not None:
        rows_key, prompts = held_out_key(organization.pk, pipeline.pk), pipeline.held_out_file
    else:
        message = "prompts_file is required: this speculator has no pipeline that held out prompts"
        raise ApiError(400, message, "missing_required_parameter", "prompts_file")
    settings = request.model_dump(exclude=_NO_SETTINGS)
    needed = evaluation_memory_needed(speculator, settings, arms)
    with change():
        speculators_lock([speculator, *(arm.speculator for arm in arms if arm.speculator is not None)])
        evaluation = evaluation_start(
            identity=identity,
            arms=arms,
            speculator=speculator,
            prompts=prompts,
            rows_key=rows_key,
            settings=settings,
            memory_needed=needed,
            contamination=contamination,
            hardware=request.hardware or "",
        )
        audit_record("evaluation.create", evaluation)
    return evaluation


def speculators_lock(speculators: Sequence[Speculator]) -> None:
    """Locks the rows, as `speculator_delete` does. Raises: ApiError: 409, a speculator is no longer ready."""
    for speculator in sorted(speculators, key=lambda each: each.pk):  # one order, so that no two requests deadlock
        speculator.refresh_from_db(from_queryset=Speculator.objects.select_for_update())
        _ready_check(speculator)


def _ready_check(speculator: Speculator) -> None:
    if speculator.status != Speculator.Status.READY:
        raise ApiError(409, f"Speculator {speculator.pk} is {speculator.status}.", "speculator_not_ready")


def evaluation_workload(
    speculator: Speculator, concurrencies: Sequence[int], arms: Sequence[Arm] = (), hardware: str = ""
) -> Workload:
    """Returns the workload for which `engine_plan` computes the memory. Raises: ApiError: 409, speculator not ready."""
    _ready_check(speculator)
    return replace(_workload(speculator, concurrencies, arms), hardware=hardware)


def evaluation_memory_needed(
    speculator: Speculator, settings: Mapping[str, Any], arms: Sequence[Arm] = ()
) -> dict[str, int]:
    """Returns the memory that the job needs, see `memory_needed`.

    Call this outside of transactions, because it lists files in storage.
    """
    workload = _workload(speculator, settings.get("concurrencies", [1]), arms)
    return memory_needed(EngineOptions.model_validate(settings.get("engine") or {}), workload)


def _workload(speculator: Speculator, concurrencies: Sequence[int], arms: Sequence[Arm]) -> Workload:
    return Workload(
        purpose=Purpose.EVALUATION,
        base_model=speculator.base_model,
        speculator=speculator,
        concurrencies=concurrencies,
        further_speculators=[arm.speculator for arm in arms if arm.speculator is not None],
        num_further_engines=sum(arm.needs_engine for arm in arms),
    )


def evaluation_rows_key(organization_id: str, evaluation_id: str) -> str:
    """Returns the storage key of a copy of the request's prompts, which is deleted when the job has ended."""
    return f"{organization_id}/evaluations/{evaluation_id}/rows.jsonl"


def evaluation_start(
    *,
    speculator: Speculator,
    prompts: File | None,
    rows_key: str,
    settings: Mapping[str, Any],
    memory_needed: Mapping[str, int],
    identity: str | None = None,
    contamination: Mapping[str, Any] | None = None,
    is_continuation: bool = False,
    arms: Sequence[Arm] = (),
    hardware: str = "",
) -> Evaluation:
    """Queues the evaluation's job.

    Args:
        settings: concurrencies, max_tokens, repeats, price_per_gpu_hour, engine; each is optional.
        memory_needed: the result of `evaluation_memory_needed`.
        hardware: see `Job.hardware`.
        is_continuation: the evaluation belongs to a pipeline that has been accepted, so the job quota does not apply.
    Raises: ApiError: 429, the organization has too many queued jobs.
    """
    price = settings.get("price_per_gpu_hour")
    all_settings = {
        "concurrencies": settings.get("concurrencies", [1]),
        "max_tokens": settings.get("max_tokens"),
        "repeats": settings.get("repeats", 1),
        "price_per_gpu_hour": get_config().price_per_gpu_hour if price is None else price,
        "engine": settings.get("engine"),
        "compare_with": [arm.name for arm in arms],
    }
    pipeline = pipeline_of(speculator)
    params = {
        "base_model_id": speculator.base_model_id,
        "speculator_id": speculator.pk,
        "rows_key": rows_key,
        "drafter": drafter_of(speculator),
        # the time to answer the prompts and to train, failed attempts included
        "training_seconds": None if pipeline is None else round(creation_seconds(pipeline), 1),
        **all_settings,
        **arm_params(arms),
    }
    with transaction.atomic():
        job = job_submit(
            organization=speculator.organization,
            kind=Job.Kind.EVALUATION,
            params=params,
            memory_needed=memory_needed,
            is_continuation=is_continuation,
            hardware=hardware,
        )
        return Evaluation.objects.create(
            id=identity or evaluation_id(),
            organization=speculator.organization,
            speculator=speculator,
            job=job,
            prompts_file=prompts,
            contamination=contamination,
            settings=all_settings,
        )


@audited("evaluation.cancel")
def evaluation_cancel(*, evaluation: Evaluation) -> bool:
    """Cancels the evaluation. Returns False if it had already ended or been cancelled."""
    return job_cancel(job=evaluation.job)


def evaluation_finish(
    *, evaluation: Evaluation, report: Mapping[str, Any], evidence: Mapping[str, Any], plots_prefix: str
) -> None:
    """Signs and stores the results of an evaluation.

    Only the first call has an effect. A second one can come from a worker whose lease expired.
    """
    certificate = certificate_of(_statement(evaluation, evidence))
    with transaction.atomic():
        unsigned = Evaluation.objects.filter(pk=evaluation.pk, certificate__isnull=True)
        if unsigned.update(certificate=certificate, plots_prefix=plots_prefix):
            plot_key = f"{plots_prefix}/report.png"
            own = {name: value for name, value in report.items() if name not in _COMPARED}
            speculator_report(speculator=evaluation.speculator, report=own, plot_key=plot_key)


def _statement(evaluation: Evaluation, evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The statement to sign: ids and names from the database, measurements and hashes from the worker's `evidence`."""
    speculator, prompts = evaluation.speculator, evaluation.prompts_file
    facts = dict(evidence)
    return {
        "evaluation_id": evaluation.pk,
        "organization_id": evaluation.organization_id,
        "issued_at": int(timezone.now().timestamp()),
        "model": {"name": speculator.base_model.name, "sha256": facts.pop("model_sha256")},
        "speculator": {
            "id": speculator.pk,
            "name": speculator.name,
            "version": speculator.version,
            "kind": speculator.kind,
            "sha256": facts.pop("speculator_sha256"),
        },
        "prompts": {
            **facts.pop("prompts"),
            "file_id": None if prompts is None else prompts.pk,
            "file_sha256": None if prompts is None else prompts.sha256,
        },
        **facts,
    }
