"""Routes of OpenAI's files."""

from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.operation import BINARY, PAGING, operation
from control.core.api.paging import paginate
from control.core.api.schemas import Deleted, Page
from control.core.settings.config import get_config
from control.core.storage.backends import ObjectMissing
from control.data.files.models import File
from control.data.files.ranges import requested_range
from control.data.files.requests import create_from
from control.data.files.schemas import FileForm, FileObject
from control.data.files.selectors import file_get, files_list
from control.data.files.services import file_delete
from control.data.files.streaming import StoredFileResponse
from control.data.files.upload_view import UploadView
from control.tenants.authentication.views import OrganizationView

PAGE_LIMIT = 10_000  # OpenAI's default and maximum for files


class FilesView(UploadView):
    scope = "files"

    def max_file_bytes(self) -> int:
        return get_config().max_upload_bytes

    @operation("files.list", response=Page[FileObject], query={**PAGING, "purpose": "Only files of this purpose."})
    def get(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        if purpose is not None and purpose not in File.Purpose.values:
            raise ApiError(
                400, f"purpose must be one of {File.Purpose.values}, got {purpose[:40]!r}", "invalid_value", "purpose"
            )
        files = files_list(self.organization, purpose=purpose)
        return paginate(files, request, FileObject.of, max_limit=PAGE_LIMIT, default_limit=PAGE_LIMIT)

    @operation("files.create", summary="Upload a file", request=FileForm, response=FileObject)
    def post(self, request: Request, body: FileForm) -> FileObject:
        return FileObject.of(create_from(self.organization, body))


class FileView(OrganizationView):
    scope = "files"

    @operation("files.retrieve", response=FileObject)
    def get(self, request: Request, file_id: str) -> FileObject:
        return FileObject.of(file_get(self.organization, file_id))

    @operation("files.delete", response=Deleted)
    def delete(self, request: Request, file_id: str) -> Deleted:
        file = file_get(self.organization, file_id)
        file_delete(file=file)
        return Deleted(id=file.pk, object="file")


class FileContentView(OrganizationView):
    scope = "files"

    @operation("files.content", summary="Download a file", response=BINARY)
    def get(self, request: Request, file_id: str) -> StoredFileResponse:
        """With the header `Range`, only a part is sent, so that an interrupted download can be continued."""
        file = file_get(self.organization, file_id)
        etag = f'"{file.sha256}"'
        part = requested_range(request.headers, size_bytes=file.size_bytes, etag=etag)
        try:
            response = StoredFileResponse(
                file.storage_key,
                filename=file.filename,
                size_bytes=file.size_bytes,
                content_type=BINARY,
                part=part,
            )
        except ObjectMissing as error:  # deleted since the row was read
            raise ApiError(404, f"No such File object: {file_id}", "file_not_found", "file_id") from error
        response["ETag"] = etag
        response["Accept-Ranges"] = "bytes"
        return response
