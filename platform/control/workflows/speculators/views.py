"""Routes of speculators: reading, deleting, importing, exporting and plots."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.core.storage.backends import ObjectMissing
from control.data.files.schemas import FileObject
from control.data.files.selectors import file_get
from control.data.files.streaming import StoredFileResponse
from control.models.catalog.selectors import base_model_get, speculator_get, speculators_list
from control.tenants.authentication.views import OrganizationView
from control.workflows.speculators.plots import EVALUATION, PLOTS, plot_response
from control.workflows.speculators.serializers import ExportInput, ImportInput, speculator_body
from control.workflows.speculators.services import speculator_delete, speculator_export, speculator_import


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


class SpeculatorExportView(OrganizationView):
    scope = "speculators"

    def post(self, request: Request, speculator_id: str) -> Response:
        """A zip archive, as a file: download its content."""
        form = ExportInput(data=request.data)
        form.is_valid(raise_exception=True)
        speculator = speculator_get(self.organization, speculator_id)
        file = speculator_export(speculator=speculator, form=form.validated_data["format"])
        return Response(FileObject.of(file).model_dump(), status=201)
