"""POST /v1/speculators/{id}/export: a file for another engine. Importing is SpeculatorsView's POST."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.api.auth import OrganizationView
from control.catalog.selectors import speculator_get
from control.exchanges.serializers import ExportInput
from control.exchanges.services import speculator_export
from control.files.serializers import file_body


class SpeculatorExportView(OrganizationView):
    scope = "speculators"

    def post(self, request: Request, speculator_id: str) -> Response:
        """A zip archive, as a file: download its content."""
        form = ExportInput(data=request.data)
        form.is_valid(raise_exception=True)
        speculator = speculator_get(self.organization, speculator_id)
        file = speculator_export(speculator=speculator, form=form.validated_data["format"])
        return Response(file_body(file), status=201)
