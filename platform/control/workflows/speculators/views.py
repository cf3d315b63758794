"""Routes of speculators: reading, deleting, importing, exporting and plots."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import PAGING, PNG, SVG, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.core.storage.backends import ObjectMissing
from control.data.files.schemas import FileObject
from control.data.files.streaming import StoredFileResponse
from control.models.catalog.selectors import speculator_get, speculators_list
from control.tenants.authentication.views import OrganizationView
from control.workflows.speculators.plots import EVALUATION, PLOTS, plot_response
from control.workflows.speculators.requests import archive_from, export_from, import_from
from control.workflows.speculators.schemas import ArchiveInput, ExportInput, ImportInput, SpeculatorObject
from control.workflows.speculators.services import speculator_delete


class SpeculatorsView(OrganizationView):
    scope = "speculators"

    @operation("speculators.list", response=Page[SpeculatorObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(speculators_list(self.organization), request, SpeculatorObject.of)

    @operation("speculators.import", request=ImportInput, response=SpeculatorObject, status=201)
    def post(self, request: Request, body: ImportInput) -> SpeculatorObject:
        """Imports a speculator from a zip archive of a folder in the format of another engine."""
        return SpeculatorObject.of(import_from(self.organization, body))


class SpeculatorView(OrganizationView):
    scope = "speculators"

    @operation("speculators.retrieve", response=SpeculatorObject)
    def get(self, request: Request, speculator_id: str) -> SpeculatorObject:
        return SpeculatorObject.of(speculator_get(self.organization, speculator_id))

    @operation("speculators.delete", response=Deleted)
    def delete(self, request: Request, speculator_id: str) -> Deleted:
        speculator_delete(speculator=speculator_get(self.organization, speculator_id))
        return Deleted(id=speculator_id, object="speculator")


class SpeculatorPlotView(OrganizationView):
    scope = "speculators"

    @operation(
        "speculators.plot",
        summary="Download the plot of a speculator",
        response=PNG,
        also=SVG,
        query={"name": "`evaluation`, `loss`, `acceptance_over_steps` or `acceptance_per_position`."},
    )
    def get(self, request: Request, speculator_id: str) -> StoredFileResponse:
        """The plot of the latest evaluation as PNG, or a plot of the training as SVG."""
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

    @operation("speculators.export", request=ExportInput, response=FileObject, status=201)
    def post(self, request: Request, speculator_id: str, body: ExportInput) -> FileObject:
        """Exports the speculator to a zip archive, which is stored as a file and can be downloaded."""
        return FileObject.of(export_from(speculator_get(self.organization, speculator_id), body))


class SpeculatorArchiveView(OrganizationView):
    scope = "speculators"

    @operation(
        "speculators.archive",
        summary="Make an archive with the evidence for a speculator",
        request=ArchiveInput,
        response=FileObject,
        status=201,
    )
    def post(self, request: Request, speculator_id: str, body: ArchiveInput) -> FileObject:
        """Stores a zip archive with the weights in each format, the recipe, the report, the certificate and commands.

        `slipstream verify` checks the archive without a network.
        """
        return FileObject.of(archive_from(speculator_get(self.organization, speculator_id), body))
