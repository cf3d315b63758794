"""Routes of datasets."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.tenants.authentication.views import OrganizationView
from control.workflows.datasets.derived_schemas import FilterInput, MixInput
from control.workflows.datasets.preview import dataset_preview
from control.workflows.datasets.requests import create_from, filter_from, mix_from, split_from
from control.workflows.datasets.schemas import (
    DatasetErrorList,
    DatasetInput,
    DatasetObject,
    PreviewRows,
    SplitInput,
    SplitList,
)
from control.workflows.datasets.selectors import dataset_get, datasets_list
from control.workflows.datasets.services import dataset_delete

MAX_PREVIEW_ROWS = 20


class DatasetsView(OrganizationView):
    scope = "datasets"

    @operation(
        "datasets.list", response=Page[DatasetObject], query={**PAGING, "name": "Only the versions of this name."}
    )
    def get(self, request: Request) -> Response:
        datasets = datasets_list(self.organization, name=request.query_params.get("name"))
        return paginate(datasets, request, DatasetObject.of)

    @operation("datasets.create", request=DatasetInput, response=DatasetObject, status=201)
    def post(self, request: Request, body: DatasetInput) -> DatasetObject:
        return DatasetObject.of(create_from(self.organization, body))


class DatasetView(OrganizationView):
    scope = "datasets"

    @operation("datasets.retrieve", response=DatasetObject)
    def get(self, request: Request, dataset_id: str) -> DatasetObject:
        return DatasetObject.of(dataset_get(self.organization, dataset_id))

    @operation("datasets.delete", response=Deleted)
    def delete(self, request: Request, dataset_id: str) -> Deleted:
        dataset = dataset_get(self.organization, dataset_id)
        identity = dataset.pk
        dataset_delete(dataset=dataset)
        return Deleted(id=identity, object="dataset")


class DatasetErrorsView(OrganizationView):
    """The bad lines, in the order of the file. `is_complete` is false if only the first bad lines were stored."""

    scope = "datasets"

    @operation("datasets.errors", summary="List the bad lines of a dataset", response=DatasetErrorList)
    def get(self, request: Request, dataset_id: str) -> DatasetErrorList:
        dataset = dataset_get(self.organization, dataset_id)
        is_complete = dataset.num_errors == len(dataset.errors)
        return DatasetErrorList.of(dataset.errors, total_count=dataset.num_errors, is_complete=is_complete)


class DatasetPreviewView(OrganizationView):
    """The first valid rows as tokens. `in_loss` says whether the training loss is computed on a token."""

    scope = "datasets"

    @operation(
        "datasets.preview",
        summary="Preview a dataset as tokens",
        response=PreviewRows,
        query={"limit": "1 to 20 rows."},
    )
    def get(self, request: Request, dataset_id: str) -> PreviewRows:
        limit = request.query_params.get("limit", "3")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= MAX_PREVIEW_ROWS and len(limit) < 4):
            message = f"limit must be in 1..{MAX_PREVIEW_ROWS}, got {limit[:40]!r}"
            raise ApiError(400, message, "invalid_value", "limit")
        return PreviewRows.of(dataset_preview(dataset_get(self.organization, dataset_id), limit=int(limit)))


class DatasetSplitsView(OrganizationView):
    """Creates a file and a dataset for each split. The rows are copied unchanged."""

    scope = "datasets"

    @operation("datasets.split", summary="Split a dataset", request=SplitInput, response=SplitList, status=201)
    def post(self, request: Request, body: SplitInput, dataset_id: str) -> SplitList:
        made = split_from(dataset_get(self.organization, dataset_id), body)
        return SplitList(data=[DatasetObject.of(dataset) for dataset in made])


class DatasetFilterView(OrganizationView):
    """Copies the rows that pass to a new file, unchanged, and creates its dataset. `origin` has the conditions."""

    scope = "datasets"

    @operation("datasets.filter", summary="Filter a dataset", request=FilterInput, response=DatasetObject, status=201)
    def post(self, request: Request, body: FilterInput, dataset_id: str) -> DatasetObject:
        return DatasetObject.of(filter_from(dataset_get(self.organization, dataset_id), body))


class DatasetMixView(OrganizationView):
    """Copies rows of several datasets, unchanged, to a new file, and creates its dataset.

    `origin.mix` is the request. If it is sent again, it makes the same file.
    """

    scope = "datasets"

    @operation("datasets.mix", summary="Mix datasets", request=MixInput, response=DatasetObject, status=201)
    def post(self, request: Request, body: MixInput) -> DatasetObject:
        return DatasetObject.of(mix_from(self.organization, body))
