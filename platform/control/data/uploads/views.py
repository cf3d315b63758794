"""Routes of OpenAI's uploads. To look at one and at its parts is ours: an upload can be resumed."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.core.settings.config import get_config
from control.data.files.serializers import expires_after
from control.data.files.upload_view import UploadView
from control.data.uploads.selectors import parts_list, upload_get
from control.data.uploads.serializers import CompleteInput, UploadInput, part_body, upload_body
from control.data.uploads.services import MAX_PART_BYTES, part_add, upload_cancel, upload_complete, upload_create
from control.tenants.authentication.views import OrganizationView


class UploadsView(OrganizationView):
    scope = "files"

    def post(self, request: Request) -> Response:
        form = UploadInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        if values["bytes"] > (limit := get_config().max_upload_bytes):
            raise ApiError(413, f"A file must be at most {limit:,} bytes.", "file_too_large", "bytes")
        upload = upload_create(
            organization=self.organization,
            filename=values["filename"],
            purpose=values["purpose"],
            mime_type=values["mime_type"],
            size_bytes=values["bytes"],
            file_expires_after=expires_after(values["expires_after"]),
        )
        return Response(upload_body(upload))


class OneUploadView(OrganizationView):
    scope = "files"

    def get(self, request: Request, upload_id: str) -> Response:
        return Response(upload_body(upload_get(self.organization, upload_id)))


class UploadPartsView(UploadView):
    scope = "files"
    file_field = "data"

    def max_file_bytes(self) -> int:
        return MAX_PART_BYTES

    def get(self, request: Request, upload_id: str) -> Response:
        return paginate(parts_list(upload_get(self.organization, upload_id)), request, part_body)

    def post(self, request: Request, upload_id: str) -> Response:
        upload = upload_get(self.organization, upload_id)
        return Response(part_body(part_add(upload=upload, staged=self.staged(request).staged)))


class UploadCompleteView(OrganizationView):
    scope = "files"

    def post(self, request: Request, upload_id: str) -> Response:
        upload = upload_get(self.organization, upload_id)
        form = CompleteInput(data=request.data)
        form.is_valid(raise_exception=True)
        values = form.validated_data
        return Response(upload_body(upload_complete(upload=upload, part_ids=values["part_ids"], md5=values["md5"])))


class UploadCancelView(OrganizationView):
    scope = "files"

    def post(self, request: Request, upload_id: str) -> Response:
        return Response(upload_body(upload_cancel(upload=upload_get(self.organization, upload_id))))
