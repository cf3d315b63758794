"""Carries out requests for distillations that come from the API or the console."""

from control.core.api.forms import ConsoleForm, row_choices
from control.data.files.choices import prompt_files
from control.data.files.selectors import file_get
from control.models.catalog.choices import base_models
from control.models.catalog.selectors import base_model_get
from control.models.engines.planning import Purpose, Workload, engine_plan
from control.models.engines.schemas import EngineOptions, EnginePlan
from control.queue.devices.selectors import hardware_check
from control.tenants.accounts.models import Organization
from control.workflows.distillations.models import Distillation
from control.workflows.distillations.schemas import DistillationRequest
from control.workflows.distillations.services import distillation_create
from control.workflows.quotes.selectors import quote_get, quotes_list


def plan_from(organization: Organization, body: DistillationRequest) -> EnginePlan:
    """Plans the memory of a distillation's engine without creating the distillation.

    Raises: ApiError: 400, an option has no effect, the model does not fit, or no device has the name `hardware`; 404,
        no such model, file or quote.
    """
    body.check()
    file_get(organization, body.prompts_file, param="prompts_file")
    if body.quote_id is not None:
        quote_get(organization, body.quote_id)
    base_model, hardware = base_model_get(organization, body.model), hardware_check(body.hardware)
    workload = Workload(purpose=Purpose.BATCH, base_model=base_model, hardware=hardware)
    return engine_plan(body.engine or EngineOptions(), workload)


def create_from(organization: Organization, body: DistillationRequest) -> Distillation:
    """Creates a distillation.

    Raises: ApiError: 400, an option has no effect, or no device has the name `hardware`; 404, no such model, file or
        quote; or as `distillation_create`.
    """
    body.check()
    return distillation_create(
        organization=organization,
        base_model=base_model_get(organization, body.model),
        prompts_file=file_get(organization, body.prompts_file, param="prompts_file"),
        quote=None if body.quote_id is None else quote_get(organization, body.quote_id),
        metadata=body.metadata,
        on_truncation=body.on_truncation,
        max_continued_tokens=body.max_continued_tokens,
        engine=body.engine,
        hardware=hardware_check(body.hardware),
    )


CREATE_DISTILLATION = ConsoleForm(
    title="Create a distillation",
    request=DistillationRequest,
    run=create_from,
    choices=lambda organization: {
        "model": base_models(organization),
        "prompts_file": prompt_files(organization),
        "quote_id": row_choices(quotes_list(organization)),
    },
)
