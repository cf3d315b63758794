"""Carries out requests for datasets that come from the API or the console."""

from control.core.api.forms import ConsoleForm, row_choices
from control.data.files.selectors import file_get, files_list
from control.models.catalog.choices import base_models
from control.models.catalog.selectors import base_model_get
from control.tenants.accounts.models import Organization
from control.workflows.datasets.derived_schemas import FilterInput, MixInput
from control.workflows.datasets.deriving import dataset_filter, dataset_mix
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.schemas import DatasetInput, SplitInput
from control.workflows.datasets.selectors import dataset_get
from control.workflows.datasets.services import dataset_create
from control.workflows.datasets.splitting import dataset_split
from control.workflows.prompt_files.sensitive import OnSensitive


def create_from(organization: Organization, body: DatasetInput) -> Dataset:
    """Raises: ApiError: 404, no such file or model; or as `dataset_create`."""
    return dataset_create(
        organization=organization,
        file=file_get(organization, body.file_id),
        name=body.name or "",
        base_model=None if body.model is None else base_model_get(organization, body.model),
        on_sensitive=None if body.on_sensitive is None else OnSensitive(body.on_sensitive),
    )


def split_from(dataset: Dataset, body: SplitInput) -> list[Dataset]:
    """Raises: ApiError: 400, the request contradicts itself; or as `dataset_split`."""
    body.check()
    return dataset_split(dataset=dataset, request=body)


def filter_from(dataset: Dataset, body: FilterInput) -> Dataset:
    """Raises: ApiError: 400, the request contradicts itself; or as `dataset_filter`."""
    body.check()
    return dataset_filter(dataset=dataset, request=body)


def mix_from(organization: Organization, body: MixInput) -> Dataset:
    """Raises: ApiError: 404, no such dataset; or as `dataset_mix`."""
    return dataset_mix(
        sources=[dataset_get(organization, source.dataset_id, param="sources") for source in body.sources],
        weights=[source.weight for source in body.sources],
        rows=body.rows,
        seed=body.seed,
        name=body.name or "",
    )


FILTER_DATASET = ConsoleForm(
    title="Filter",
    request=FilterInput,
    run=lambda row, body: filter_from(dataset_get(row.organization, row.pk), body),
)

SPLIT_DATASET = ConsoleForm(
    title="Split",
    request=SplitInput,
    run=lambda row, body: split_from(dataset_get(row.organization, row.pk), body)[0],
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
