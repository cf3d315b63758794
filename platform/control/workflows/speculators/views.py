"""POST /v1/speculators/{id}/export: a file for another engine. Importing is SpeculatorsView's POST."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.data.files.schemas import FileObject
from control.models.catalog.selectors import speculator_get
from control.tenants.authentication.views import OrganizationView
from control.workflows.speculators.serializers import ExportInput
from control.workflows.speculators.services import speculator_export


class SpeculatorExportView(OrganizationView):
    scope = "speculators"

    def post(self, request: Request, speculator_id: str) -> Response:
        """A zip archive, as a file: download its content."""
        form = ExportInput(data=request.data)
        form.is_valid(raise_exception=True)
        speculator = speculator_get(self.organization, speculator_id)
        file = speculator_export(speculator=speculator, form=form.validated_data["format"])
        return Response(FileObject.of(file).model_dump(), status=201)
