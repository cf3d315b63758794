"""Carries out requests for pipelines that come from the API, the console or a fine-tuning job."""

from collections.abc import Sequence

from control.core.api.errors import ApiError
from control.core.api.forms import ConsoleForm, name_choices, row_choices
from control.data.files.choices import prompt_files
from control.data.files.models import File
from control.models.base_speculators.choices import ready_speculators
from control.models.catalog.choices import base_models
from control.models.catalog.hyperparameters import hyperparameters_check
from control.queue.devices.selectors import hardware_check
from control.tenants.accounts.models import Organization
from control.workflows.distillations.selectors import distillations_list
from control.workflows.pipelines.models import Pipeline
from control.workflows.pipelines.schemas import PipelineOptions, PipelinePlan, Training
from control.workflows.pipelines.services import pipeline_create, pipeline_validate
from control.workflows.prompt_files.contamination import OnContamination
from control.workflows.prompt_files.sensitive import OnSensitive
from control.workflows.quotes.selectors import quotes_list
from workers.kinds import OUTPUT_CHANGING_KINDS, REQUESTED_KINDS


def plan_from(organization: Organization, body: PipelineOptions) -> PipelinePlan:
    """Checks a request and plans the memory of the stages' engines without creating the pipeline.

    Raises: ApiError: as `create_from`, except that the contents of files, quotas and prices are not checked.
    """
    _check(body)
    return pipeline_validate(organization=organization, request=body)


def create_from(organization: Organization, body: PipelineOptions, new_files: Sequence[File] = ()) -> Pipeline:
    """Raises: ApiError: 400, a hyperparameter or `hardware` is invalid, or the parameters that name the prompts
    contradict each other; or as `pipeline_create`.
    """
    _check(body)
    return pipeline_create(organization=organization, request=body, new_files=new_files)


def _check(body: PipelineOptions) -> None:
    hardware_check(body.hardware)
    _check_hyperparameters(body.training)
    _check_prompts(body)
    _check_gate(body)


def _check_hyperparameters(training: Training) -> None:
    """Checks the hyperparameters early: training reads them only after the model has answered every prompt."""
    hyperparameters_check(training.kind, training.model_extra or {}, param="training", kind_param="training.kind")


def _check_prompts(body: PipelineOptions) -> None:
    if (body.prompts_file is None) == (body.distillation_id is None):
        message = "a pipeline takes prompts_file or distillation_id, and not both"
        code = "missing_required_parameter" if body.prompts_file is None else "invalid_value"
        raise ApiError(400, message, code, "prompts_file")
    _check_answers(body)
    if body.distillation_id is not None and body.held_out_file is None:
        message = "held_out_file is required with distillation_id: training uses all prompts of a distillation"
        raise ApiError(400, message, "missing_required_parameter", "held_out_file")
    if body.distillation_id is not None and body.distillation is not None:
        message = "distillation cannot be given together with distillation_id, whose answers exist already"
        raise ApiError(400, message, "invalid_value", "distillation")
    if body.distillation_id is not None and body.on_contamination == OnContamination.DROP:
        message = "on_contamination 'drop' needs prompts_file: the answers of a distillation exist already"
        raise ApiError(400, message, "invalid_value", "on_contamination")
    if body.distillation_id is not None and body.on_sensitive == OnSensitive.REDACT:
        message = "on_sensitive 'redact' needs prompts_file: the answers of a distillation exist already"
        raise ApiError(400, message, "invalid_value", "on_sensitive")
    if body.distillation is not None:
        body.distillation.check("distillation.max_continued_tokens")
    if body.held_out_file is not None and body.held_out is not None:
        message = "held_out splits rows off prompts_file; it cannot be given together with held_out_file"
        raise ApiError(400, message, "invalid_value", "held_out")


def _check_answers(body: PipelineOptions) -> None:
    if body.answers == Pipeline.Answers.MODEL:
        return
    if body.prompts_file is None:
        message = "answers 'file' needs prompts_file, whose rows have the answers"
        raise ApiError(400, message, "invalid_value", "answers")
    if body.distillation is not None:
        message = "distillation cannot be given with answers 'file': the answers exist already"
        raise ApiError(400, message, "invalid_value", "distillation")


def _check_gate(body: PipelineOptions) -> None:
    """Refuses a gate that no report could pass, or that names a concurrency that is not evaluated."""
    gate, evaluated = body.gate, body.evaluation.concurrencies
    if gate.concurrency is not None and gate.concurrency not in evaluated:
        message = f"gate.concurrency must be one of evaluation.concurrencies {evaluated}, got {gate.concurrency}"
        raise ApiError(400, message, "invalid_value", "gate.concurrency")
    if body.training.kind in OUTPUT_CHANGING_KINDS and gate.outputs_equal is True:
        message = (
            f"gate.outputs_equal must be model, model_and_adapter or false for a {body.training.kind}, "
            "whose adapter changes the answers of the model"
        )
        raise ApiError(400, message, "invalid_value", "gate.outputs_equal")


CREATE_PIPELINE = ConsoleForm(
    title="Create a pipeline",
    request=PipelineOptions,
    run=create_from,
    choices=lambda organization: {
        "model": base_models(organization),
        "prompts_file": prompt_files(organization),
        "held_out_file": prompt_files(organization),
        "distillation_id": row_choices(distillations_list(organization)),
        "quote_id": row_choices(quotes_list(organization)),
        "training.kind": name_choices(REQUESTED_KINDS),
        "training.initial_speculator": ready_speculators(organization),
    },
)
