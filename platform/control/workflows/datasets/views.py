"""Routes of datasets."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.data.files.selectors import file_get
from control.models.catalog.selectors import base_model_get
from control.tenants.authentication.views import OrganizationView
from control.workflows.datasets.preview import dataset_preview
from control.workflows.datasets.selectors import dataset_get, datasets_list
from control.workflows.datasets.serializers import DatasetInput, dataset_body
from control.workflows.datasets.services import dataset_create, dataset_delete

MAX_PREVIEW_ROWS = 20


class DatasetsView(OrganizationView):
    scope = "datasets"

    def get(self, request: Request) -> Response:
        return paginate(datasets_list(self.organization), request, dataset_body)

    def post(self, request: Request) -> Response:
        form = DatasetInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        file = file_get(self.organization, values["file_id"])
        base_model = None if values["model"] is None else base_model_get(self.organization, values["model"])
        dataset = dataset_create(organization=self.organization, file=file, base_model=base_model)
        return Response(dataset_body(dataset), status=201)


class DatasetView(OrganizationView):
    scope = "datasets"

    def get(self, request: Request, dataset_id: str) -> Response:
        return Response(dataset_body(dataset_get(self.organization, dataset_id)))

    def delete(self, request: Request, dataset_id: str) -> Response:
        dataset = dataset_get(self.organization, dataset_id)
        dataset_delete(dataset=dataset)
        return Response({"id": dataset_id, "object": "dataset", "deleted": True})


class DatasetErrorsView(OrganizationView):
    """All bad lines that were kept, by line."""

    scope = "datasets"

    def get(self, request: Request, dataset_id: str) -> Response:
        dataset = dataset_get(self.organization, dataset_id)
        is_all = dataset.num_errors == len(dataset.errors)
        body = {"object": "list", "data": dataset.errors, "total_count": dataset.num_errors, "is_complete": is_all}
        return Response({**body, "first_id": None, "last_id": None, "has_more": False})


class DatasetPreviewView(OrganizationView):
    """The first good rows as tokens, each with whether the loss falls on it."""

    scope = "datasets"

    def get(self, request: Request, dataset_id: str) -> Response:
        limit = request.query_params.get("limit", "3")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:4]) <= MAX_PREVIEW_ROWS and len(limit) < 4):
            message = f"limit must be in 1..{MAX_PREVIEW_ROWS}, got {limit[:40]!r}"
            raise ApiError(400, message, "invalid_value", "limit")
        rows = dataset_preview(dataset_get(self.organization, dataset_id), limit=int(limit))
        return Response({"object": "list", "data": rows, "first_id": None, "last_id": None, "has_more": False})
