"""Carries out requests for datasets that come from the API or the console."""

from control.core.api.forms import ConsoleForm, row_choices
from control.data.files.selectors import file_get, files_list
from control.models.catalog.choices import base_models
from control.models.catalog.selectors import base_model_get
from control.tenants.accounts.models import Organization
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.schemas import DatasetInput
from control.workflows.datasets.services import dataset_create


def create_from(organization: Organization, body: DatasetInput) -> Dataset:
    """Raises: ApiError: 404, no such file or model; otherwise as `dataset_create`."""
    return dataset_create(
        organization=organization,
        file=file_get(organization, body.file_id),
        name=body.name or "",
        base_model=None if body.model is None else base_model_get(organization, body.model),
    )


CREATE_DATASET = ConsoleForm(
    title="Validate a dataset",
    request=DatasetInput,
    run=create_from,
    choices=lambda organization: {
        "file_id": row_choices(files_list(organization)),
        "model": base_models(organization),
    },
)
