"""Carries out requests for batches that come from the API or the console."""

from control.core.api.forms import ConsoleForm, name_choices, row_choices
from control.data.files.choices import prompt_files
from control.data.files.requests import EXPIRY_CHOICES
from control.data.files.selectors import file_get
from control.models.catalog.choices import base_models
from control.models.catalog.selectors import base_model_get
from control.models.engines.planning import Purpose, Workload, engine_plan
from control.models.engines.schemas import EngineOptions, EnginePlan
from control.queue.devices.selectors import hardware_check
from control.tenants.accounts.models import Organization
from control.workflows.batches.choosing import RowClass
from control.workflows.batches.models import Batch
from control.workflows.batches.schemas import BatchOptions, RepairInput
from control.workflows.batches.services import batch_create, batch_repair
from control.workflows.prompt_files.rows import ENDPOINTS
from control.workflows.quotes.selectors import quote_get, quotes_list


def plan_from(organization: Organization, body: BatchOptions) -> EnginePlan:
    """Plans the memory of a batch's engine without creating the batch.

    Raises: ApiError: 404, no such file, quote or model; 400, the model does not fit, or no device has the name
        `hardware`.
    """
    file_get(organization, body.input_file_id, param="input_file_id")
    if body.quote_id is not None:
        quote_get(organization, body.quote_id)
    base_model = None if body.model is None else base_model_get(organization, body.model)
    workload = Workload(purpose=Purpose.BATCH, base_model=base_model, hardware=hardware_check(body.hardware))
    return engine_plan(body.engine or EngineOptions(), workload)


def create_from(organization: Organization, body: BatchOptions) -> Batch:
    """Raises: ApiError: 404, the file or quote does not exist; 400, no device has the name `hardware`; or as
    `batch_create`."""
    return batch_create(
        organization=organization,
        input_file=file_get(organization, body.input_file_id, param="input_file_id"),
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        metadata=body.metadata,
        model=body.model,
        output_expires_after=None if body.output_expires_after is None else body.output_expires_after.delta,
        quote=None if body.quote_id is None else quote_get(organization, body.quote_id),
        engine=body.engine,
        priority=body.priority,
        hardware=hardware_check(body.hardware),
    )


def repair_from(batch: Batch, body: RepairInput) -> Batch:
    """Raises: ApiError: as `batch_repair`."""
    return batch_repair(batch=batch, rows=body.rows, max_tokens=body.max_tokens)


CREATE_BATCH = ConsoleForm(
    title="Create a batch",
    request=BatchOptions,
    run=create_from,
    choices=lambda organization: {
        "input_file_id": prompt_files(organization),
        "endpoint": name_choices(ENDPOINTS),
        "model": base_models(organization),
        "output_expires_after": EXPIRY_CHOICES,
        "quote_id": row_choices(quotes_list(organization)),
    },
)
REPAIR_BATCH = ConsoleForm(
    title="Repair",
    request=RepairInput,
    run=repair_from,
    choices=lambda organization: {"rows": name_choices(RowClass)},
)
