"""Routes of models and speculators."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.core.storage.backends import ObjectMissing
from control.data.files.selectors import file_get
from control.data.files.streaming import StoredFileResponse
from control.models.catalog.intake import base_model_delete, base_model_submit
from control.models.catalog.selectors import (
    base_model_by_id,
    base_model_get,
    base_models_list,
    registered_models_list,
    speculator_get,
    speculators_list,
)
from control.models.catalog.serializers import (
    BaseModelInput,
    base_model_body,
    deployment_model_body,
    models_body,
    registered_model_body,
    speculator_body,
)
from control.serving.deployments.selectors import deployments_list
from control.tenants.authentication.views import OrganizationView
from control.workflows.speculators.plots import EVALUATION, PLOTS, plot_response
from control.workflows.speculators.serializers import ImportInput
from control.workflows.speculators.services import speculator_delete, speculator_import


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


class SpeculatorsView(OrganizationView):
    scope = "speculators"

    def get(self, request: Request) -> Response:
        return paginate(speculators_list(self.organization), request, speculator_body)

    def post(self, request: Request) -> Response:
        """Imports one from a zip archive of another engine's folder."""
        form = ImportInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        speculator = speculator_import(
            organization=self.organization,
            file=file_get(self.organization, values["file_id"]),
            form=values["format"],
            base_model=base_model_get(self.organization, values["model"]),
            name=values["name"],
        )
        return Response(speculator_body(speculator), status=201)


class SpeculatorView(OrganizationView):
    scope = "speculators"

    def get(self, request: Request, speculator_id: str) -> Response:
        return Response(speculator_body(speculator_get(self.organization, speculator_id)))

    def delete(self, request: Request, speculator_id: str) -> Response:
        speculator_delete(speculator=speculator_get(self.organization, speculator_id))
        return Response({"id": speculator_id, "object": "speculator", "deleted": True})


class SpeculatorPlotView(OrganizationView):
    scope = "speculators"

    def get(self, request: Request, speculator_id: str) -> StoredFileResponse:
        """The latest evaluation's plot, a PNG, or one of its training, as SVG."""
        speculator = speculator_get(self.organization, speculator_id)
        name = request.query_params.get("name", EVALUATION)
        if name not in PLOTS:
            raise ApiError(400, f"name must be one of {', '.join(PLOTS)}, got {name[:40]!a}", "invalid_value", "name")
        try:
            return plot_response(speculator, name)
        except ObjectMissing:
            message = f"Speculator {speculator.pk} has no such plot yet."
            raise ApiError(404, message, "plot_not_found", "speculator_id") from None
