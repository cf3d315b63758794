"""Routes of OpenAI's uploads. The GET routes are an extension, with which a client can resume an upload."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.operation import PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Page
from control.data.files.upload_view import UploadView
from control.data.uploads.requests import create_from
from control.data.uploads.schemas import CompleteInput, PartForm, UploadInput, UploadObject, UploadPartObject
from control.data.uploads.selectors import parts_list, upload_get
from control.data.uploads.services import MAX_PART_BYTES, part_add, upload_cancel, upload_complete
from control.tenants.authentication.views import OrganizationView


class UploadsView(OrganizationView):
    scope = "files"

    @operation("uploads.create", request=UploadInput, response=UploadObject)
    def post(self, request: Request, body: UploadInput) -> UploadObject:
        return UploadObject.of(create_from(self.organization, body))


class OneUploadView(OrganizationView):
    scope = "files"

    @operation("uploads.retrieve", response=UploadObject)
    def get(self, request: Request, upload_id: str) -> UploadObject:
        return UploadObject.of(upload_get(self.organization, upload_id))


class UploadPartsView(UploadView):
    scope = "files"
    file_field = "data"

    def max_file_bytes(self) -> int:
        return MAX_PART_BYTES

    @operation(
        "uploads.parts.list", summary="List the parts of an upload", response=Page[UploadPartObject], query=PAGING
    )
    def get(self, request: Request, upload_id: str) -> Response:
        return paginate(parts_list(upload_get(self.organization, upload_id)), request, UploadPartObject.of)

    @operation("uploads.parts.create", summary="Add a part to an upload", request=PartForm, response=UploadPartObject)
    def post(self, request: Request, upload_id: str, body: PartForm) -> UploadPartObject:
        upload = upload_get(self.organization, upload_id)
        return UploadPartObject.of(part_add(upload=upload, staged=body.data.staged))


class UploadCompleteView(OrganizationView):
    scope = "files"

    @operation(
        "uploads.complete",
        summary="Make a file from the parts of an upload",
        request=CompleteInput,
        response=UploadObject,
    )
    def post(self, request: Request, upload_id: str, body: CompleteInput) -> UploadObject:
        upload = upload_get(self.organization, upload_id)
        return UploadObject.of(upload_complete(upload=upload, part_ids=body.part_ids, md5=body.md5))


class UploadCancelView(OrganizationView):
    scope = "files"

    @operation("uploads.cancel", response=UploadObject)
    def post(self, request: Request, upload_id: str) -> UploadObject:
        return UploadObject.of(upload_cancel(upload=upload_get(self.organization, upload_id)))
