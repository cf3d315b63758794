"""Carries out requests for evaluations that come from the API or the console."""

from control.core.api.forms import ConsoleForm, name_choices
from control.data.files.choices import prompt_files
from control.data.files.models import File
from control.data.files.selectors import batch_file_check, file_get
from control.models.base_speculators.choices import ready_speculators
from control.models.base_speculators.services import speculator_preview, speculator_resolve
from control.models.engines.planning import engine_plan
from control.models.engines.schemas import EngineOptions, EnginePlan
from control.queue.devices.selectors import hardware_check
from control.tenants.accounts.models import Organization
from control.workflows.evaluations.arms import UNTRAINED, arms_preview, arms_resolve
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.schemas import EvaluationOptions
from control.workflows.evaluations.services import evaluation_create, evaluation_workload


def plan_from(organization: Organization, body: EvaluationOptions) -> EnginePlan:
    """Plans the memory of an evaluation's engine without creating the evaluation.

    Raises: ApiError: 404, no such speculator or file; 409, a speculator is not ready; 400, a file of another purpose,
        the model does not fit, or no device has the name `hardware`; or as `arms_resolve`.
    """
    if body.prompts_file is not None:
        _prompts(organization, body.prompts_file)
    speculator = speculator_preview(organization, body.speculator_id)
    arms = arms_preview(organization, speculator, body.compare_with)
    workload = evaluation_workload(speculator, body.concurrencies, arms, hardware_check(body.hardware))
    return engine_plan(body.engine or EngineOptions(), workload)


def create_from(organization: Organization, body: EvaluationOptions) -> Evaluation:
    """Raises: ApiError: 404, no such speculator or file; 400, a file of another purpose, or no device has the name
    `hardware`; or as `arms_resolve` and `evaluation_create`."""
    hardware_check(body.hardware)
    speculator = speculator_resolve(organization, body.speculator_id)
    arms = arms_resolve(organization, speculator, body.compare_with)
    prompts = None if body.prompts_file is None else _prompts(organization, body.prompts_file)
    return evaluation_create(organization=organization, speculator=speculator, prompts=prompts, request=body, arms=arms)


def _prompts(organization: Organization, file_id: str) -> File:
    file = file_get(organization, file_id, param="prompts_file")
    return batch_file_check(file, param="prompts_file")


CREATE_EVALUATION = ConsoleForm(
    title="Evaluate a speculator",
    request=EvaluationOptions,
    run=create_from,
    choices=lambda organization: {
        "speculator_id": (speculators := ready_speculators(organization)),
        "compare_with": [*name_choices(UNTRAINED), *speculators],
        "prompts_file": prompt_files(organization),
    },
)
