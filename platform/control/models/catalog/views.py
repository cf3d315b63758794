"""Routes of models and speculators."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.paging import paginate
from control.models.catalog.intake import base_model_delete, base_model_submit
from control.models.catalog.selectors import (
    base_model_by_id,
    registered_models_list,
)
from control.models.catalog.serializers import (
    BaseModelInput,
    registered_model_body,
)
from control.tenants.authentication.views import OrganizationView


class BaseModelsView(OrganizationView):
    """Models as they were registered: your own, and those that everybody may use."""

    scope = "models"

    def get(self, request: Request) -> Response:
        return paginate(registered_models_list(self.organization), request, registered_model_body)

    def post(self, request: Request) -> Response:
        """Its files are checked by a worker: `status` becomes `ready`, or `refused` with an `error`."""
        form = BaseModelInput(data=request.data)
        form.is_valid(raise_exception=True)
        model = base_model_submit(organization=self.organization, **form.validated_data)
        return Response(registered_model_body(model), status=201)


class BaseModelView(OrganizationView):
    scope = "models"

    def get(self, request: Request, model_id: str) -> Response:
        return Response(registered_model_body(base_model_by_id(self.organization, model_id)))

    def delete(self, request: Request, model_id: str) -> Response:
        """Only your own, and only while nothing was made with it."""
        base_model_delete(base_model=base_model_by_id(self.organization, model_id), organization=self.organization)
        return Response({"id": model_id, "object": "base_model", "deleted": True})
