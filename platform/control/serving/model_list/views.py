"""GET /v1/models."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.models.catalog.selectors import base_model_get, base_models_list
from control.serving.deployments.selectors import deployments_list
from control.serving.model_list.serializers import base_model_body, deployment_model_body, models_body
from control.tenants.authentication.views import OrganizationView


class ModelsView(OrganizationView):
    scope = "models"

    def get(self, request: Request) -> Response:
        models = base_models_list(self.organization).order_by("name")
        deployments = deployments_list(self.organization).order_by("name")
        return Response(models_body(list(models), list(deployments)))


class ModelView(OrganizationView):
    scope = "models"

    def get(self, request: Request, name: str) -> Response:
        deployment = deployments_list(self.organization).filter(name=name).first()
        if deployment is not None:
            return Response(deployment_model_body(deployment))
        return Response(base_model_body(base_model_get(self.organization, name)))
