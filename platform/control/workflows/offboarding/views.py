"""/v1/organization/exports and /v1/organization/deletion, which need the scope `*`: only owners have it."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import BINARY, PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.data.files.ranges import requested_range
from control.tenants.accounts.scopes import EVERYTHING
from control.tenants.authentication.views import OrganizationView
from control.workflows.offboarding.models import OrganizationExport
from control.workflows.offboarding.schemas import (
    OrganizationDeletionInput,
    OrganizationDeletionObject,
    OrganizationExportObject,
)
from control.workflows.offboarding.selectors import organization_export_get, organization_exports_list
from control.workflows.offboarding.services import (
    organization_deletion_request,
    organization_export_create,
    organization_export_delete,
)
from control.workflows.offboarding.streaming import ArchiveResponse, etag_of


class OrganizationExportsView(OrganizationView):
    scope = EVERYTHING
    project_keys = "are refused"

    @operation("organization_exports.list", response=Page[OrganizationExportObject], query=PAGING)
    def get(self, request: Request) -> Response:
        return paginate(organization_exports_list(self.organization), request, OrganizationExportObject.of)

    @operation("organization_exports.create", response=OrganizationExportObject, status=201)
    def post(self, request: Request) -> OrganizationExportObject:
        """Starts an archive of everything that the organization has. There is at most one archive at a time."""
        return OrganizationExportObject.of(organization_export_create(organization=self.organization))


class OrganizationExportView(OrganizationView):
    scope = EVERYTHING
    project_keys = "are refused"

    @operation("organization_exports.retrieve", response=OrganizationExportObject)
    def get(self, request: Request, export_id: str) -> OrganizationExportObject:
        return OrganizationExportObject.of(organization_export_get(self.organization, export_id))

    @operation("organization_exports.delete", response=Deleted)
    def delete(self, request: Request, export_id: str) -> Deleted:
        """Ends an export and deletes its archive, even if the archive is incomplete."""
        export = organization_export_get(self.organization, export_id)
        organization_export_delete(export=export)
        return Deleted(id=export.pk, object="organization_export")


class OrganizationExportContentView(OrganizationView):
    scope = EVERYTHING
    project_keys = "are refused"

    @operation("organization_exports.content", summary="Download an organization export", response=BINARY)
    def get(self, request: Request, export_id: str) -> ArchiveResponse:
        """The tar archive. With the header `Range`, only a part is sent, so an interrupted download can continue."""
        export = organization_export_get(self.organization, export_id)
        if export.status != OrganizationExport.Status.COMPLETED:
            raise ApiError(409, f"The export {export.pk} is not complete yet.", "export_not_ready", "export_id")
        part = requested_range(request.headers, size_bytes=export.size_bytes, etag=etag_of(export))
        return ArchiveResponse(export, part)


class OrganizationDeletionView(OrganizationView):
    scope = EVERYTHING
    project_keys = "are refused"

    @operation(
        "organization_deletion.create",
        summary="Delete the organization",
        request=OrganizationDeletionInput,
        response=OrganizationDeletionObject,
    )
    def post(self, request: Request, body: OrganizationDeletionInput) -> OrganizationDeletionObject:
        """Requests the deletion of the organization with everything that it has.

        From now on, all its API keys are refused, its jobs are cancelled and its deployments stopped. Until
        `erase_after`, an owner can cancel the deletion in the console. Then everything is deleted for good.
        """
        organization = organization_deletion_request(organization=self.organization, name=body.name)
        return OrganizationDeletionObject.of(organization)
