"""Carries out requests for adapters that come from the API or the console."""

from control.core.api.forms import ConsoleForm, row_choices
from control.data.files.selectors import file_get, files_list
from control.models.adapters.models import Adapter
from control.models.adapters.schemas import AdapterInput
from control.models.adapters.services import adapter_create
from control.models.catalog.choices import base_models
from control.models.catalog.selectors import base_model_get
from control.tenants.accounts.models import Organization


def create_from(organization: Organization, body: AdapterInput) -> Adapter:
    """Raises: ApiError: 404, the model or a file does not exist; or as `adapter_create`."""
    return adapter_create(
        organization=organization,
        name=body.name,
        base_model=base_model_get(organization, body.model),
        config_file=file_get(organization, body.config_file, param="config_file"),
        weights_file=file_get(organization, body.weights_file, param="weights_file"),
    )


CREATE_ADAPTER = ConsoleForm(
    title="Create an adapter",
    request=AdapterInput,
    run=create_from,
    choices=lambda organization: {
        "model": base_models(organization),
        "config_file": row_choices(files_list(organization)),
        "weights_file": row_choices(files_list(organization)),
    },
)
