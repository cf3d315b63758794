"""GET /v1/models."""

from rest_framework.request import Request

from control.core.api.operation import operation
from control.models.adapters.models import is_fine_tuned
from control.models.catalog.selectors import base_model_get, base_models_list
from control.serving.deployments.selectors import deployment_by_name, deployments_list
from control.serving.model_list.schemas import ModelList, ModelObject
from control.tenants.authentication.views import OrganizationView


class ModelsView(OrganizationView):
    scope = "models"

    @operation("models.list", response=ModelList)
    def get(self, request: Request) -> ModelList:
        deployments = deployments_list(self.organization).order_by("name")
        return ModelList.of(base_models_list(self.organization).order_by("name"), deployments)


class ModelView(OrganizationView):
    scope = "models"

    @operation("models.retrieve", response=ModelObject)
    def get(self, request: Request, name: str) -> ModelObject:
        if is_fine_tuned(name):
            return ModelObject.of(deployment_by_name(self.organization, name)).model_copy(update={"id": name})
        deployment = deployments_list(self.organization).filter(name=name).first()
        return ModelObject.of(deployment or base_model_get(self.organization, name))
