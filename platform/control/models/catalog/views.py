"""/v1/base_models: the models that speculators are trained for."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.models.catalog.intake import base_model_delete
from control.models.catalog.requests import create_from
from control.models.catalog.schemas import BaseModelInput, BaseModelObject
from control.models.catalog.selectors import base_model_by_id, registered_models_list
from control.tenants.authentication.views import OrganizationView


class BaseModelsView(OrganizationView):
    scope = "models"

    @operation("base_models.list", response=Page[BaseModelObject], query=PAGING)
    def get(self, request: Request) -> Response:
        """Your models, and the models that all projects of your organization, or all organizations, may use."""
        return paginate(registered_models_list(self.organization), request, BaseModelObject.of)

    @operation(
        "base_models.create",
        summary="Register a base model",
        request=BaseModelInput,
        response=BaseModelObject,
        status=201,
    )
    def post(self, request: Request, body: BaseModelInput) -> BaseModelObject:
        """A worker checks the model's files: `status` becomes `ready`, or `refused` with an `error`."""
        return BaseModelObject.of(create_from(self.organization, body))


class BaseModelView(OrganizationView):
    scope = "models"

    @operation("base_models.retrieve", response=BaseModelObject)
    def get(self, request: Request, model_id: str) -> BaseModelObject:
        return BaseModelObject.of(base_model_by_id(self.organization, model_id))

    @operation("base_models.delete", response=Deleted)
    def delete(self, request: Request, model_id: str) -> Deleted:
        """You can delete only your own models, and only while no other object uses them."""
        base_model_delete(base_model=base_model_by_id(self.organization, model_id), organization=self.organization)
        return Deleted(id=model_id, object="base_model")
