"""Routes of OpenAI's files."""

from collections.abc import Mapping

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.paging import paginate
from control.core.settings.config import get_config
from control.core.storage.backends import ObjectMissing
from control.data.files.models import File
from control.data.files.ranges import requested_range
from control.data.files.selectors import file_get, files_list
from control.data.files.serializers import UploadInput, expires_after, file_body
from control.data.files.services import file_create, file_delete
from control.data.files.streaming import StoredFileResponse
from control.data.files.upload_view import UploadView, nested
from control.tenants.authentication.views import OrganizationView

PAGE_LIMIT = 10_000  # OpenAI's default and maximum for files


class FilesView(UploadView):
    scope = "files"

    def max_file_bytes(self) -> int:
        return get_config().max_upload_bytes

    def get(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        if purpose is not None and purpose not in File.Purpose.values:
            raise ApiError(
                400, f"purpose must be one of {File.Purpose.values}, got {purpose[:40]!r}", "invalid_value", "purpose"
            )
        files = files_list(self.organization, purpose=purpose)
        return paginate(files, request, file_body, max_limit=PAGE_LIMIT, default_limit=PAGE_LIMIT)

    def post(self, request: Request) -> Response:
        upload = self.staged(request)
        form = UploadInput(data=request.data)
        form.is_valid(raise_exception=True)
        assert isinstance(request.data, Mapping)  # a form: it brought a file along
        file = file_create(
            organization=self.organization,
            filename=upload.name or "file",
            purpose=form.validated_data["purpose"],
            source=upload.staged,
            expires_after=expires_after(nested(request.data, "expires_after")),
        )
        return Response(file_body(file))


class FileView(OrganizationView):
    scope = "files"

    def get(self, request: Request, file_id: str) -> Response:
        return Response(file_body(file_get(self.organization, file_id)))

    def delete(self, request: Request, file_id: str) -> Response:
        file = file_get(self.organization, file_id)
        file_delete(file=file)
        return Response({"id": file.pk, "object": "file", "deleted": True})


class FileContentView(OrganizationView):
    scope = "files"

    def get(self, request: Request, file_id: str) -> StoredFileResponse:
        """`Range` asks for a part, so that a download that broke off can go on."""
        file = file_get(self.organization, file_id)
        etag = f'"{file.sha256}"'
        part = requested_range(request.headers, size_bytes=file.size_bytes, etag=etag)
        try:
            response = StoredFileResponse(
                file.storage_key,
                filename=file.filename,
                size_bytes=file.size_bytes,
                content_type="application/octet-stream",
                part=part,
            )
        except ObjectMissing as error:  # deleted between our look at the row and at the bytes
            raise ApiError(404, f"No such File object: {file_id}", "file_not_found", "file_id") from error
        response["ETag"] = etag
        response["Accept-Ranges"] = "bytes"
        return response
